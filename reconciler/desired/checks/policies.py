"""Admission policies of the repository: objects that they deny, warn of, or exempt for a time.

A policy is a match, a JSON Schema and a message. Documents come in as written with defaults, a job
also with its effective values (all tasks of an element together). One fault for each violated
policy goes out. Schemas refer to nothing outside themselves.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from reconciler.desired.checks import safe_patterns
from reconciler.desired.documents.faults import Fault, FaultCollector
from reconciler.desired.documents.yaml_reader import Path
from reconciler.model import desired
from reconciler.model.documents import fields, policy_spec
from reconciler.model.values import found_values, times
from reconciler.model.values.resources import Resources

#: How deep a schema may be.
DEPTH_MAX = 40
#: An object on which a schema is tried before its policy comes into force.
_SAMPLE = {
    "apiVersion": fields.API_VERSION,
    "kind": "Job",
    "metadata": {"name": "sample"},
    "spec": {"command": ["sample"]},
}
#: So long before a waiver ends it is said to end.
ENDING_S = 14 * 86_400.0
_encode = msgspec.json.Encoder(order="deterministic").encode


def normalise(
    name: str, spec: policy_spec.PolicySpec, path: str, faults: FaultCollector
) -> desired.AdmissionPolicy:
    """Return a policy as the rest of Muster uses it; its schema is valid."""
    _check_schema(spec.schema, faults)
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
        schema=_encode(spec.schema).decode(),
        kinds=tuple(spec.match.kinds),
        queues=tuple(spec.match.queues),
        labels=spec.match.labels,
        action=spec.action,
        owners=tuple(spec.owners),
        waivers=tuple(waivers),
        path=path,
    )


def _check_schema(schema: dict[str, Any], faults: FaultCollector) -> None:
    import jsonschema  # noqa: PLC0415 - it takes long to import, and most clusters have no policy

    try:
        for reference in _references(schema, DEPTH_MAX):
            if not reference.startswith("#"):
                faults.add(
                    "bad-schema",
                    "a schema must not refer to anything outside itself: put the part under $defs",
                    *("spec", "schema"),
                    found=found_values.quote(reference),
                    expected="a reference that begins with #",
                )
        jsonschema.Draft202012Validator.check_schema(schema)
        for wrong in safe_patterns.faults(schema):
            faults.add("bad-schema", wrong, "spec", "schema")
        if not faults.found:
            _try(schema, faults)
    except jsonschema.SchemaError as error:
        path: Path = ("spec", "schema", *error.absolute_path)
        faults.add("bad-schema", f"this is not a JSON Schema: {error.message}", *path)
    except RecursionError:
        faults.add("bad-schema", f"deeper than {DEPTH_MAX} levels", "spec", "schema")


def _try(schema: dict[str, Any], faults: FaultCollector) -> None:
    """Refuse a schema that does not come to an end."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as jsonschema above

    try:
        with safe_patterns.bounded():
            safe_patterns.validator(schema).is_valid(_SAMPLE)
    except safe_patterns.TooManyReferencesError as error:
        faults.add("bad-schema", str(error), "spec", "schema")
    except (Unresolvable, RecursionError, safe_patterns.SlowPatternError):
        return  # told of the objects that it is applied to


def _references(value: Any, depth: int) -> Iterator[str]:
    if depth <= 0:
        raise RecursionError
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(inner, str):
                yield inner
            yield from _references(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner, depth - 1)


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
        "elements": job.element_count,
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
    """The policies of a structure. ``until`` is when a judgement may change."""

    def __init__(self, policies: Mapping[str, desired.AdmissionPolicy]) -> None:
        self._by_kind: dict[str, list[tuple[desired.AdmissionPolicy, Any]]] = {}
        for one in policies.values():
            validator = safe_patterns.validator(msgspec.json.decode(one.schema))
            for kind in one.kinds:
                self._by_kind.setdefault(kind, []).append((one, validator))
        self.until = math.inf
        #: Faults of policies that can't be applied: no other object is tried.
        self._endless: dict[str, Fault] = {}

    def faults(
        self,
        kind: str,
        name: str,
        part: fields.DocumentPart,
        now: float,
        job: desired.Job | None = None,
    ) -> list[Fault]:
        """Return violations of policies by one object: errors, and warnings for exempt ones."""
        found: list[Fault] = []
        seen: dict[str, Any] | None = None
        for rule, validator in self._by_kind.get(kind, ()):
            if not _matches(rule, part, job):
                continue
            if seen is None:
                seen = view(part, job)
            fault = self._judge(rule, validator, seen)
            if fault is not None:
                found.append(self._waived(rule, fault, f"{kind}/{name}", now))
        return found

    def _judge(
        self, rule: desired.AdmissionPolicy, validator: Any, seen: dict[str, Any]
    ) -> Fault | None:
        """Return the fault of one object; at once if the policy has come to no end before."""
        if rule.name in self._endless:
            return self._endless[rule.name]
        try:
            with safe_patterns.bounded():
                return _judge(rule, validator, seen)
        except safe_patterns.TooManyReferencesError as error:
            told = f"the policy cannot be applied: {error}"
            severity: Literal["error", "warning"] = "error" if rule.action == "deny" else "warning"
            self._endless[rule.name] = Fault(f"policy/{rule.name}", told, severity=severity)
            return self._endless[rule.name]

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


def _matches(
    rule: desired.AdmissionPolicy, part: fields.DocumentPart, job: desired.Job | None
) -> bool:
    if rule.queues and (job is None or job.queue not in rule.queues):
        return False
    if not rule.labels:
        return True
    metadata: fields.Metadata = part.metadata  # type: ignore[attr-defined]
    return all(metadata.labels.get(key) == value for key, value in rule.labels.items())


def _judge(rule: desired.AdmissionPolicy, validator: Any, value: dict[str, Any]) -> Fault | None:
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - there is a validator already
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        if validator.is_valid(value):
            return None
        error = best_match(validator.iter_errors(value))
    except (Unresolvable, RecursionError) as broken:
        return Fault(
            f"policy/{rule.name}",
            f"the policy cannot be applied: its schema has a broken reference ({broken})",
        )
    except safe_patterns.SlowPatternError as slow:
        severity: Literal["error", "warning"] = "error" if rule.action == "deny" else "warning"
        return Fault(f"policy/{rule.name}", f"{rule.message} ({slow})", severity=severity)
    place = tuple(error.absolute_path) if error is not None else ()
    found = ""
    if error is not None and place and error.validator not in {"required", "not"}:
        found = found_values.quote(error.instance)
    if place[:1] == ("effective",):
        # it is written nowhere, so that the value says which one it is
        found = f"{'.'.join(map(str, place[1:]))} {found}".strip()
        place = ("spec",)
    return Fault(
        rule=f"policy/{rule.name}",
        message=rule.message,
        path=place,
        found=found,
        severity="error" if rule.action == "deny" else "warning",
    )
