"""Admission policies of the repository: objects that they deny, warn of, or exempt for a time.

A policy is a match, a JSON Schema and a message. Documents come in as written with defaults, a job
also with its effective values (all tasks of an element together). One fault for each violated
policy goes out. Schemas refer to nothing outside themselves.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from reconciler.desired.checks import policy_answers, policy_process
from reconciler.desired.documents.faults import Fault, FaultCollector
from reconciler.model import desired
from reconciler.model.documents import fields, policy_spec
from reconciler.model.values import times
from reconciler.model.values.resources import Resources

#: Schemas whose faults are remembered.
CHECKED_MAX = 1_000
#: So long patterns may be searched for too slowly by the policies of one structure; after that,
#: those of one object may take less.
SLOW_S_MAX = 10.0
SEARCHES_AFTER_S_MAX = 0.05
#: So long before a waiver ends it is said to end.
ENDING_S = 14 * 86_400.0
_encode = msgspec.json.Encoder(order="deterministic").encode


def normalise(
    name: str, spec: policy_spec.PolicySpec, path: str, faults: FaultCollector
) -> desired.AdmissionPolicy:
    """Return a policy as the rest of Muster uses it; its schema is valid."""
    schema = _encode(spec.schema or {}).decode()
    check_schema(schema, faults)
    if spec.schema is None and not spec.mutate:
        message = "a policy without `mutate` needs a `schema`: there is nothing that it would do"
        faults.add("empty-policy", message, "spec")
    if spec.schema is not None and not spec.message:
        message = "say what whoever violates the schema has to do"
        faults.add("policy-message", message, "spec", "message", expected="a text")
    waivers = []
    for index, one in enumerate(spec.waivers):
        try:
            expires_at = times.parse_time(one.expires)
        except ValueError as error:
            faults.add(
                "bad-time", f"this is not a time: {error}", "spec", "waivers", index, "expires"
            )
            continue
        waivers.append(desired.Waiver(one.object, one.reason, expires_at))
    return desired.AdmissionPolicy(
        name=name,
        message=spec.message,
        schema=schema,
        kinds=tuple(spec.match.kinds),
        queues=tuple(spec.match.queues),
        labels=spec.match.labels,
        action=spec.action,
        owners=tuple(spec.owners),
        waivers=tuple(waivers),
        path=path,
    )


#: Faults of schemas, by their text; only those that were found within the limits.
_checked: OrderedDict[str, tuple[policy_answers.SchemaFault, ...]] = OrderedDict()


def remember(policies: Iterable[desired.AdmissionPolicy]) -> None:
    """Take the schemas of policies in force as checked: they stay in force as they were."""
    for one in policies:
        _remember(one.schema, ())


def _remember(schema: str, found: tuple[policy_answers.SchemaFault, ...]) -> None:
    _checked[schema] = found
    _checked.move_to_end(schema)
    while len(_checked) > CHECKED_MAX:
        _checked.popitem(last=False)


def check_schema(
    schema: str, faults: FaultCollector, place: tuple[str | int, ...] = ("spec", "schema")
) -> None:
    """Add the faults of a schema at its place, or that it takes too much to find them."""
    found = _checked.get(schema)
    if found is None:
        try:
            found = tuple(policy_process.SHARED.faults(schema))
        except policy_process.UndecidedPolicyError as error:
            faults.add("bad-schema", f"its schema can't be checked: {error}", *place)
            return
        except policy_process.PolicyLimitError as error:
            found = (policy_answers.SchemaFault(f"its schema can't be checked: {error}"),)
        _remember(schema, found)
    for one in found:
        where = (*place, *one.path[2:])  # it is told as that of a whole policy
        faults.add("bad-schema", one.message, *where, found=one.found, expected=one.expected)


def view(part: fields.DocumentPart, job: desired.Job | None = None) -> dict[str, Any]:
    """Return the object that schemas see: as written, with defaults, without empty values."""
    value: dict[str, Any] = _without_none(msgspec.to_builtins(part))
    if job is not None:
        value["effective"] = _effective(job)
    return value


def _without_none(value: Any) -> Any:
    """Return a value without nulls and without empty mappings and lists."""
    if isinstance(value, dict):
        inner = {key: _without_none(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one is not None and one not in ({}, [])}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value


def _effective(job: desired.Job) -> dict[str, Any]:
    """Return the resources of one element of a job, and the values that defaults gave it."""
    total = sum((g.resources.times(g.count) for g in job.groups), start=Resources())
    found: dict[str, Any] = {
        "tasks": sum(group.count for group in job.groups),
        "elements": len(job.run_elements),
        "cpu": _whole(total.cpu_milli / 1000),
        "memory": total.memory_bytes,
        "gpu": _whole(total.gpu_milli / 1000),
        "priority": job.priority,
        "preemptible": job.preemptible,
    }
    if job.time_limit_s is not None:
        found["timeLimitSeconds"] = job.time_limit_s
    return found


def _whole(amount: float) -> float:
    """Return integral numbers as integers, for messages: 9 GPUs, not 9.0."""
    return int(amount) if amount.is_integer() else amount


class PolicyRules:
    """The policies of a structure.

    Attributes:
        until: when a judgement may change.
        slow_s: how long slow searches have taken; after ``SLOW_S_MAX`` they get less time.
    """

    def __init__(
        self, policies: Mapping[str, desired.AdmissionPolicy], slow_s: float = 0.0
    ) -> None:
        self._by_kind: dict[str, list[desired.AdmissionPolicy]] = {}
        for one in policies.values():
            for kind in one.kinds:
                self._by_kind.setdefault(kind, []).append(one)
        self.until = math.inf
        self.slow_s = slow_s

    def faults(
        self,
        kind: str,
        name: str,
        part: fields.DocumentPart,
        now: float,
        job: desired.Job | None = None,
        *,
        above: Sequence[str] = (),
    ) -> list[Fault]:
        """Return violations of policies by one object: errors, and warnings for exempt ones.

        Args:
            kind: its kind, and ``name`` its name.
            part: its document.
            now: seconds since the epoch, for waivers.
            job: the job, if it is one.
            above: ancestors of the job's queue: a policy for one of them holds for it too.
        """
        queues = frozenset() if job is None else frozenset((job.queue, *above))
        rules = [
            one
            for one in self._by_kind.get(kind, ())
            if (one.schema != "{}" or not one.mutations) and matches(one, part, queues)
        ]
        if not rules:
            return []
        schemas = [one.schema for one in rules]
        owner = "" if job is None else job.owner or ""
        found = self.judged(schemas, view(part, job), owner, now)
        return [
            self._waived(rule, _fault(rule, violation), f"{kind}/{name}", now)
            for rule, violation in zip(rules, found, strict=True)
            if violation is not None
        ]

    def judged(
        self, schemas: Sequence[str], seen: dict[str, Any], owner: str, now: float
    ) -> list[policy_answers.Violation | None]:
        """Return the violation of each schema of a policy by one object; None: there is none.

        Args:
            schemas: as JSON texts.
            seen: the object as of :func:`view`.
            owner: whose it is.
            now: seconds since the epoch.
        """
        is_spent = self.slow_s >= SLOW_S_MAX
        searches_s = SEARCHES_AFTER_S_MAX if is_spent else policy_answers.SEARCHES_S_MAX
        began = time.monotonic()
        found = policy_process.SHARED.violations(schemas, seen, searches_s, owner)
        if any(one is not None and one.slow for one in found):
            self.slow_s += time.monotonic() - began
        for one in found:
            if one is not None and one.paused:
                self.until = min(self.until, now + one.pause_s)
        return found

    def _waived(self, rule: desired.AdmissionPolicy, fault: Fault, label: str, now: float) -> Fault:
        """Return the fault, or a warning if a waiver covers it."""
        waiver = max(
            (one for one in rule.waivers if one.object == label),
            key=lambda one: one.expires_at,
            default=None,
        )
        if waiver is None:
            return fault
        until = times.format_time(waiver.expires_at)
        if waiver.expires_at <= now:
            message = f"{fault.message} (its waiver ended {until}: {waiver.reason})"
            return msgspec.structs.replace(fault, message=message)
        self.until = min(self.until, waiver.expires_at)
        message = f"{fault.message} (waived until {until}: {waiver.reason})"
        return msgspec.structs.replace(fault, message=message, severity="warning")


def matches(
    rule: desired.AdmissionPolicy, part: fields.DocumentPart, queues: frozenset[str]
) -> bool:
    """Return True if a policy concerns an object, which is a job in these queues if it is one."""
    if rule.queues and queues.isdisjoint(rule.queues):
        return False
    if not rule.labels:
        return True
    metadata: fields.Metadata = part.metadata  # type: ignore[attr-defined]
    return all(metadata.labels.get(key) == value for key, value in rule.labels.items())


def _fault(rule: desired.AdmissionPolicy, violation: policy_answers.Violation) -> Fault:
    """Return the fault of an object that violates a policy."""
    severity: Literal["error", "warning"] = "error" if rule.action == "deny" else "warning"
    name = f"policy/{rule.name}"
    if violation.broken:
        return Fault(name, f"the policy cannot be applied: {violation.broken}")
    if violation.endless:
        told = f"the policy cannot be applied to this object: {violation.endless}"
        return Fault(name, told, severity=severity)
    if violation.paused:
        told = f"the policy is not applied now: {violation.paused}"
        return Fault(name, told, severity=severity)
    if violation.slow:
        return Fault(name, f"{rule.message} ({violation.slow})", severity=severity)
    place, found = violation.path, violation.found
    if place[:1] == ("effective",):
        # it is written nowhere, so that the value says which one it is
        found = f"{'.'.join(map(str, place[1:]))} {found}".strip()
        place = ("spec",)
    return Fault(name, rule.message, path=place, found=found, severity=severity)
