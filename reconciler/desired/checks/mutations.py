"""Changes that policies make to jobs before anything is checked: merge patches, where they apply.

A job's document as written comes in; the document that counts goes out, with each field that a
policy has set. What says who a job is, whose, and where it waits is never changed. The run's hash
stays that of the document as written.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from reconciler.desired.checks import policies
from reconciler.desired.documents.faults import Fault, FaultCollector
from reconciler.model import desired
from reconciler.model.documents import job_spec, policy_spec
from reconciler.model.policy import queue_paths
from reconciler.model.protocol import decoders
from reconciler.model.values import found_values

#: The most that one patch has, and that a document has after all of them.
PATCH_BYTES_MAX, DOCUMENT_BYTES_MAX = 16 * 2**10, 2**20
#: How deep a patch may be, and how much of a value is told.
PATCH_DEPTH_MAX, TOLD_CHARACTERS_MAX = 20, 200
#: Fields of ``spec`` that no patch may have, and why.
REFUSED = {
    "owner": "it says whose the job is, and what its submitter may do was judged by it",
    "queue": "who may submit to a queue was judged by the document as written",
    "run": "it says which run this is",
    "array": "it says which elements this run has",
    "dependsOn": "the order of jobs is judged by documents as written",
}
#: In a patch, what stands for each group of tasks in place of the list of all.
EACH_GROUP = "*"
_SPEC_FIELDS = frozenset(job_spec.JobSpec.__struct_encode_fields__)
_GROUP_FIELDS = frozenset(job_spec.TaskGroupSpec.__struct_encode_fields__) - {"name"}
#: What a group may have of its own in place of what the job has.
_SHARED_FIELDS = _SPEC_FIELDS & _GROUP_FIELDS
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_convert = decoders.converter(job_spec.JobDocument)


def normalise(spec: policy_spec.PolicySpec, faults: FaultCollector) -> tuple[desired.Mutation, ...]:
    """Return the mutations of a policy; add a fault for each that can't be meant."""
    if spec.mutate and spec.match.kinds != ["Job"]:
        message = "only jobs are changed by policies: let a policy with `mutate` match them alone"
        faults.add("mutation-kind", message, "spec", "match", "kinds", expected="[Job]")
    found = []
    for index, one in enumerate(spec.mutate):
        place = ("spec", "mutate", index)
        when = ""
        if one.when:
            when = _encode(one.when).decode()
            policies.check_schema(when, faults, (*place, "when"))
        patch = _encode(one.patch)
        if len(patch) > PATCH_BYTES_MAX or _depth(one.patch) > PATCH_DEPTH_MAX:
            message = (
                f"a patch has {PATCH_BYTES_MAX >> 10} KiB and {PATCH_DEPTH_MAX} levels at most"
            )
            faults.add("mutation-size", message, *place, "patch")
        _check_fields(one.patch, faults, (*place, "patch"))
        if not faults.found:
            _warn_of_groups(one.patch, faults, (*place, "patch", "spec"))
        found.append(desired.Mutation(when, patch.decode()))
    return tuple(found)


def _check_fields(
    patch: Mapping[str, Any], faults: FaultCollector, place: tuple[str | int, ...]
) -> None:
    """Add a fault for each part of a patch that no policy may change."""
    for key, value in patch.items():
        if key not in {"spec", "metadata"} or not isinstance(value, dict):
            message = "a patch changes fields of `spec`, and labels in `metadata`, and nothing else"
            faults.add("mutation-field", message, *place, key)
            continue
        for inner in value:
            if key == "metadata" and inner != "labels":
                message = "of `metadata` a patch changes `labels` alone: the rest names the job"
                faults.add("mutation-field", message, *place, key, inner)
            elif key == "spec" and inner in REFUSED:
                message = f"a policy may not change spec.{inner}: {REFUSED[inner]}"
                faults.add("mutation-field", message, *place, key, inner)
            elif key == "spec" and inner not in _SPEC_FIELDS:
                message = "jobs have no such field"
                quoted = found_values.quote(inner)
                faults.add("mutation-field", message, *place, key, inner, found=quoted)
            elif inner == "groups":
                _check_groups(value[inner], faults, (*place, key, inner))


def _check_groups(groups: Any, faults: FaultCollector, place: tuple[str | int, ...]) -> None:
    """Add a fault for each part of a patch of all groups that can't be meant."""
    for key, value in groups.items() if isinstance(groups, dict) else ():
        if key != EACH_GROUP or not isinstance(value, dict):
            message = (
                "a patch changes what each group has of its own, under `*`, or is a list that "
                "replaces all groups"
            )
            faults.add("mutation-field", message, *place, key, expected=EACH_GROUP)
            continue
        for inner in sorted(value.keys() - _GROUP_FIELDS):
            message = "it names the group" if inner == "name" else "groups have no such field"
            quoted = found_values.quote(inner)
            faults.add("mutation-field", message, *place, key, inner, found=quoted)


def _warn_of_groups(
    patch: Mapping[str, Any], faults: FaultCollector, place: tuple[str | int, ...]
) -> None:
    """Warn of fields that a patch sets for the job, and that its groups may have of their own."""
    spec = patch.get("spec")
    if not isinstance(spec, dict):
        return
    groups = spec.get("groups")
    if groups is not None and not isinstance(groups, dict):
        return  # it replaces them all
    each = (groups or {}).get(EACH_GROUP)
    for name in sorted(spec.keys() & _SHARED_FIELDS):
        if not _is_covered(
            spec[name], each.get(name, _ABSENT) if isinstance(each, dict) else _ABSENT
        ):
            message = (
                f"a group of tasks with {name} of its own keeps that: to change it too, write it "
                f"in the patch as groups: {{'*': {{{name}: …}}}} as well"
            )
            faults.found.append(
                Fault("mutation-groups", message, (*place, name), at_key=True, severity="warning")
            )


_ABSENT = object()


def _is_covered(value: Any, of_groups: Any) -> bool:
    """Return True if what a patch sets for groups has all that it sets for the job."""
    if of_groups is _ABSENT:
        return False
    if not isinstance(value, dict) or not isinstance(of_groups, dict):
        return True
    return all(_is_covered(inner, of_groups.get(key, _ABSENT)) for key, inner in value.items())


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


class MutatedDocument(msgspec.Struct, frozen=True):
    """A document that counts: the fields that policies have set, or why they could not."""

    part: job_spec.JobDocument
    set_fields: tuple[desired.FieldMutation, ...] = ()
    faults: tuple[Fault, ...] = ()


class JobMutations:
    """The mutations of a structure, in the order of their policies' names.

    Args:
        structure: whose policies they are.
        rules: the same policies, which judge ``when`` within their limits.
    """

    def __init__(self, structure: desired.Structure, rules: policies.PolicyRules) -> None:
        self._policies = [one for _, one in sorted(structure.policies.items()) if one.mutations]
        self._parents = {name: queue.parent for name, queue in structure.queues.items()}
        self._rules = rules

    def apply(self, part: job_spec.JobDocument, now: float) -> MutatedDocument:
        """Return the document that counts; ``now`` is for waivers."""
        found = MutatedDocument(part)
        for policy in self._policies:
            if not self._holds_for(policy, found.part, now):
                continue
            for index, mutation in enumerate(policy.mutations):
                found = self._apply(policy, index, mutation, found, now)
                if found.faults:
                    return found
        return found

    def _holds_for(
        self, policy: desired.AdmissionPolicy, part: job_spec.JobDocument, now: float
    ) -> bool:
        queue = part.spec.queue
        queues = frozenset((queue, *queue_paths.ancestors(queue, self._parents.get)))
        if not policies.matches(policy, part, queues):
            return False
        label = f"Job/{part.metadata.name}"
        ends = [one.expires_at for one in policy.waivers if one.object == label]
        until = max(ends, default=-math.inf)
        if until <= now:
            return True
        self._rules.until = min(self._rules.until, until)
        return False

    def _apply(
        self,
        policy: desired.AdmissionPolicy,
        index: int,
        mutation: desired.Mutation,
        before: MutatedDocument,
        now: float,
    ) -> MutatedDocument:
        part, name = before.part, f"policy/{policy.name}"
        if mutation.when:
            owner = part.spec.owner or ""
            (no,) = self._rules.judged([mutation.when], policies.view(part), owner, now)
            why = "" if no is None else no.broken or no.endless or no.paused or no.slow
            if why:
                said = f"spec.mutate[{index}].when of the policy can't be judged: {why}"
                return msgspec.structs.replace(before, faults=(Fault(name, said),))
            if no is not None:
                return before
        value = msgspec.to_builtins(part)
        patched = _patched(value, _decode(mutation.patch))
        try:
            if len(_encode(patched)) > DOCUMENT_BYTES_MAX:
                raise msgspec.ValidationError(f"it has more than {DOCUMENT_BYTES_MAX >> 20} MiB")  # noqa: TRY301
            part = _convert(patched)
        except msgspec.ValidationError as error:
            said = f"spec.mutate[{index}] of the policy makes the job invalid: {error}"
            fix = "to fix: correct the policy, or write the field so that its `when` does not apply"
            return msgspec.structs.replace(before, faults=(Fault(name, f"{said}; {fix}"),))
        fresh = tuple(
            desired.FieldMutation(policy.name, ".".join(path), text)
            for path, text in _differences(value, msgspec.to_builtins(part))
        )
        return MutatedDocument(part, (*before.set_fields, *fresh))


def _patched(document: dict[str, Any], patch: dict[str, Any]) -> Any:
    """Return a job's document after a patch, which may be one of what its groups have."""
    spec = patch.get("spec")
    groups = spec.get("groups") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(groups, dict):
        return merged(document, patch)
    rest = {**patch, "spec": {key: value for key, value in spec.items() if key != "groups"}}
    found = merged(document, rest)
    each = groups.get(EACH_GROUP, {})
    found["spec"]["groups"] = [_of_group(group, each) for group in found["spec"].get("groups", ())]
    return found


def _of_group(group: dict[str, Any], patch: dict[str, Any]) -> Any:
    """Return a group after a patch of what it has of its own.

    What it has not it takes from the job: a part of that would hide the rest.
    """
    has = {key: value for key, value in patch.items() if group.get(key) not in _NOT_THERE}
    return merged(group, has)


#: A field of a group that the group takes from the job.
_NOT_THERE: tuple[Any, ...] = (None, {}, [])


def merged(target: Any, patch: Any) -> Any:
    """Return a value after a JSON Merge Patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def _differences(
    before: Any, after: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each field that differs, with its new value; empty if it is gone."""
    if before == after:
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        text = "" if after is None else _encode(after).decode()
        cut = text if len(text) <= TOLD_CHARACTERS_MAX else f"{text[:TOLD_CHARACTERS_MAX]}…"
        yield path, cut
        return
    for key in sorted(before.keys() | after.keys()):
        yield from _differences(before.get(key), after.get(key), (*path, key))


def with_fields(
    job: desired.Job, written: desired.Job | None, set_fields: tuple[desired.FieldMutation, ...]
) -> desired.Job:
    """Return a job with what policies have set in it.

    Args:
        written: the same job without them; None if it would be refused.
        set_fields: by policies.
    """
    names = [
        name
        for name in job.__struct_fields__
        if written is None or getattr(job, name) != getattr(written, name)
    ]
    mutated = tuple(name for name in names if name not in _IDENTITY)
    return msgspec.structs.replace(job, mutations=set_fields, mutated=mutated)


#: What no policy changes of a normalised job.
_IDENTITY = frozenset({"name", "run", "hash", "queue", "owner", "path", "mutations", "mutated"})


def described(one: desired.FieldMutation) -> str:
    """Return what is told of a field that a policy has set."""
    return f"sets {one.field} to {one.value}" if one.value else f"removes {one.field}"
