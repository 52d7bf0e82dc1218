"""The structural objects of a desired state by label, and which of them differ between two.

A label is a kind and a document's name, ``NodePool/a``. Identities have their address,
``Access/ada@example.org``. Safety, approvals, the audit log and permissions use these labels.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from reconciler.model import desired

_DEFAULT = desired.ClusterSettings()
#: Kinds whose objects all need approval, or none.
_WHOLE = ("Access", "Cluster")


def differences(
    before: desired.Structure, after: desired.Structure
) -> Iterator[tuple[str, tuple[object, object]]]:
    """Return labels of structural objects that differ, with both sides as plain values.

    A side is None if there is no such object.
    """
    old, new = objects(before), objects(after)
    found = {
        label: (old.get(label), new.get(label))
        for label in old.keys() | new.keys()
        if old.get(label) != new.get(label)
    }
    found.update(_of_cluster(before.settings, after.settings))
    for label, (left, right) in sorted(found.items(), key=lambda item: item[0]):
        yield label, (msgspec.to_builtins(left), msgspec.to_builtins(right))


def _of_cluster(
    before: desired.ClusterSettings, after: desired.ClusterSettings
) -> Iterator[tuple[str, tuple[object, object]]]:
    """Return the ``Cluster`` if it differs by more than its name."""
    if _nameless(before) == _nameless(after) and bool(before.name) == bool(after.name):
        return
    sides = [one if one.name or one != _DEFAULT else None for one in (before, after)]
    if all(sides) and _nameless(before) == _nameless(after):
        return  # only its name is new
    yield (after if after.name else before).label, (sides[0], sides[1])


def _nameless(settings: desired.ClusterSettings) -> desired.ClusterSettings:
    return msgspec.structs.replace(settings, name="") if settings.name else settings


def objects(structure: desired.Structure) -> dict[str, object]:
    """Return the normalised objects of a structure by label, without its ``Cluster``."""
    tables: Iterable[tuple[str, Mapping[str, object]]] = (
        ("NodePool", structure.pools),
        ("Queue", structure.queues),
        ("PriorityClass", structure.priority_classes),
        ("Access", _people(structure)),
        ("Quota", structure.quotas),
        ("Reservation", structure.reservations),
        ("Volume", structure.volumes),
        # the position of a policy does not matter
        (
            "Policy",
            {n: msgspec.structs.replace(one, path="") for n, one in structure.policies.items()},
        ),
    )
    return {f"{kind}/{name}": value for kind, table in tables for name, value in table.items()}


def _people(structure: desired.Structure) -> dict[str, object]:
    """Return what ``Access`` says of each identity, and the roles."""
    known = structure.access.identities
    found: dict[str, object] = {
        email: (structure.unix_users.get(email), known.get(email))
        for email in sorted(structure.unix_users.keys() | known.keys())
    }
    if structure.access.roles:
        found["roles"] = structure.access.roles
    return found


def needing_approval(labels: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the labels that a pattern names: ``Kind``, ``Kind/name``, or with ``*`` for any text.

    Documents of ``Access`` count together, by person: a pattern that names one names all. There is
    one ``Cluster``, whose name may change. So a pattern of these two kinds means the whole kind.
    """
    wanted = []
    for pattern in patterns:
        kind, slash, _ = pattern.partition("/")
        wanted.append(pattern if slash else f"{kind}/*")
        wanted += [f"{one}/*" for one in _WHOLE if fnmatch.fnmatchcase(one, kind)]
    return [
        label for label in labels if any(fnmatch.fnmatchcase(label, pattern) for pattern in wanted)
    ]
