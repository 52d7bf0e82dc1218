"""The policy of a scenario: names and values of ``Cluster.spec.scheduling`` as settings.

Names of a document come in, settings go out; names that this build does not know are collected.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from reconciler.model import desired
from reconciler.model.documents import cluster_spec
from reconciler.model.values import found_values, quantities
from reconciler.simulation.scenarios import schema


def settings_of(
    policy: dict[str, Any],
    missing: dict[str, None],
    base: desired.ClusterSettings | None = None,
) -> desired.ClusterSettings:
    """Return the policy as part of the settings; unknown names are missing.

    Names, values and bounds are those of ``Cluster.spec.scheduling``; a name of ``fairness`` and
    ``learnedRunTimes`` may be written with a dot: ``learnedRunTimes.quantile``.

    Args:
        missing: collects unknown names.
        base: settings that the policy does not name; None: the defaults.

    Raises:
        schema.ScenarioError: a value is invalid, or given twice; its place begins with the name.
    """
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in policy.items():
        name, _, part = key.partition(".")
        if name not in SCHEDULING or bool(part) != (part in SCHEDULING[name]):
            missing[f"policy {key}"] = None
        elif part:
            parts.setdefault(name, {})[part] = value
        else:
            whole[name] = value
    for name in sorted(whole.keys() & parts.keys()):
        beside = ", ".join(f"{name}.{part}" for part in parts[name])
        told = f"found {name} beside {beside}, expected one of the two: say all of it in {name}"
        raise schema.ScenarioError(told, name)
    written = whole | parts
    try:
        spec = msgspec.convert(written, cluster_spec.SchedulingSpec)
    except msgspec.ValidationError as error:
        raise _refused(str(error), written) from error
    scheduling = _scheduling(spec)
    named = {
        setting: getattr(scheduling, setting)
        for name, setting in _SETTINGS.items()
        if name in policy or name.partition(".")[0] in policy
    }
    base = base or desired.ClusterSettings()
    return msgspec.structs.replace(
        base, scheduling=msgspec.structs.replace(base.scheduling, **named)
    )


def _scheduling(spec: cluster_spec.SchedulingSpec) -> desired.Scheduling:
    fairness, learned = spec.fairness, spec.learned_run_times
    window = fairness.window
    return desired.Scheduling(
        backfill=spec.backfill,
        depth=spec.depth,
        consolidation=spec.consolidation,
        usage_half_life_s=_some_seconds(fairness.half_life, "fairness.halfLife"),
        usage_strength=float(fairness.strength),
        placement=spec.placement,
        order=spec.order,
        learned_quantile=None if learned is None else learned.quantile,
        overdue_after=float(spec.overdue_after),
        min_runtime_s=_seconds(spec.min_runtime, "minRuntime"),
        stale_gang_s=_seconds(spec.stale_gang_grace, "staleGangGrace"),
        grace_max_s=_seconds(spec.grace_max, "graceMax"),
        usage_window_s=None if window is None else _some_seconds(window, "fairness.window"),
    )


def _seconds(written: str | int, where: str) -> int:
    try:
        return quantities.parse_duration(written)
    except quantities.QuantityError as error:
        raise schema.ScenarioError(str(error), where) from error


def _some_seconds(written: str | int, where: str) -> int:
    """Return a duration that is not zero."""
    found = _seconds(written, where)
    if found == 0:
        told = "a duration above 0s; say strength: 0 where past use is not to count"
        raise schema.ScenarioError(f"found {written}, expected {told}", where)
    return found


def _value(written: dict[str, Any], place: Iterable[str]) -> Any:
    """Return the value at a place; None: there is none."""
    value: Any = written
    for step in place:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _refused(told: str, written: dict[str, Any]) -> schema.ScenarioError:
    """Return what is wrong with a value, with the allowed words if there are any."""
    error = schema.explained(told, written)
    value = _value(written, error.where.split("."))
    if " matching regex " in error.message:  # all texts that are not of some words are durations
        _seconds(value, error.where)
    if error.message.startswith("Expected "):
        expected = error.message.removeprefix("Expected ").partition(", got ")[0]
        return schema.ScenarioError(
            f"found {found_values.quote(value)}, expected {expected}", error.where
        )
    words = _WORDS.get(error.where)
    if words is None:
        return error
    return schema.ScenarioError(
        f"found {found_values.quote(value)}, expected one of {words}", error.where
    )


def _without(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a type without its constraints and without None."""
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    if isinstance(kind, msgspec.inspect.UnionType):
        return next((_without(one) for one in kind.types if _is_struct(_without(one))), kind)
    return kind


def _is_struct(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.StructType)


def _fields(kind: msgspec.inspect.Type) -> dict[str, msgspec.inspect.Type]:
    """Return the names in a part of a document, each with its type; none if it is a plain value."""
    if not isinstance(kind, msgspec.inspect.StructType):
        return {}
    return {field.encode_name: _without(field.type) for field in kind.fields}


#: Names of ``Cluster.spec.scheduling``, each with the names that it holds.
SCHEDULING: dict[str, tuple[str, ...]] = {
    name: tuple(_fields(kind))
    for name, kind in _fields(msgspec.inspect.type_info(cluster_spec.SchedulingSpec)).items()
}
#: Which setting each of them is, those that hold others by what they hold.
_SETTINGS = {
    "backfill": "backfill",
    "depth": "depth",
    "consolidation": "consolidation",
    "fairness.halfLife": "usage_half_life_s",
    "fairness.strength": "usage_strength",
    "fairness.window": "usage_window_s",
    "placement": "placement",
    "order": "order",
    "learnedRunTimes.quantile": "learned_quantile",
    "overdueAfter": "overdue_after",
    "minRuntime": "min_runtime_s",
    "staleGangGrace": "stale_gang_s",
    "graceMax": "grace_max_s",
}
#: The words of those that take some.
_WORDS = {
    name: ", ".join(sorted(map(str, kind.values)))
    for name, kind in _fields(msgspec.inspect.type_info(cluster_spec.SchedulingSpec)).items()
    if isinstance(kind, msgspec.inspect.LiteralType)
}
