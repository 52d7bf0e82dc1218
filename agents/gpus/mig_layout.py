"""Plans how a GPU gets from its present MIG instances to desired ones. Pure, without the driver.

Present instances and the driver's possibilities come in. The plan says which instances are
destroyed, and which are created and where. It keeps as many as possible.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

Wanted = Sequence[tuple[str, int]]
#: Placements that are tried before a layout is given up: a GPU has at most eight memory slices.
_TRIES_MAX = 100_000


class MemorySlices(msgspec.Struct, frozen=True):
    """Memory slices of a GPU, from ``start`` on."""

    start: int
    size: int

    def slices(self) -> range:
        """The slices as a range."""
        return range(self.start, self.start + self.size)


class MigProfile(msgspec.Struct, frozen=True):
    """A profile that the driver offers, with its ``id``, compute ``slices`` and possible
    ``places``.
    """

    name: str
    id: int
    slices: int
    places: tuple[MemorySlices, ...]


class GpuInstance(msgspec.Struct, frozen=True):
    """A GPU instance.

    Attributes:
        whole: True if one compute instance has all of its compute.
        empty: True if it has no compute instance.
        mine: True if Muster may destroy it.
    """

    id: int
    profile: str
    place: MemorySlices
    whole: bool = True
    empty: bool = False
    mine: bool = True


class MigSteps(msgspec.Struct, frozen=True):
    """Steps to a layout: instances to destroy, to complete with compute, and to create."""

    destroy: tuple[GpuInstance, ...] = ()
    complete: tuple[GpuInstance, ...] = ()
    create: tuple[tuple[MigProfile, MemorySlices], ...] = ()


class LayoutError(Exception):
    """A layout that is impossible. ``blocked``: only because of instances that others created."""

    def __init__(self, message: str, *, blocked: bool = False) -> None:
        super().__init__(message)
        self.blocked = blocked


def plan(
    wanted: Wanted, there: Sequence[GpuInstance], profiles: Mapping[str, MigProfile]
) -> MigSteps:
    """Return the steps from present to desired instances.

    Args:
        wanted: (profile, number of instances) pairs.
        there: present instances, ordered by id.
        profiles: what the driver offers, by name.

    Raises:
        LayoutError: the layout is impossible, or only possible by destroying others' instances.
    """
    for name, _ in wanted:
        if name not in profiles:
            known = ", ".join(sorted(profiles)) or "none"
            raise LayoutError(f"the device has no profile {name}; it has: {known}")
    kept, extra = _sorted_out(wanted, there)
    missing = _missing(wanted, kept)
    found = place(missing, profiles, kept)
    if found is None and kept:
        # right profile, but at a place where it is in the way of others
        extra, kept = [*extra, *kept], []
        missing = _missing(wanted, ())
        found = place(missing, profiles, ())
    if found is None:
        raise LayoutError(f"{told(wanted)} do not fit on the device together")
    foreign = [instance for instance in extra if not instance.mine]
    if foreign:
        counts = Counter(instance.profile for instance in foreign)
        raise LayoutError(
            f"{told(counts.items())} on it were created by others",
            blocked=True,
        )
    return MigSteps(tuple(extra), tuple(instance for instance in kept if instance.empty), found)


def _sorted_out(
    wanted: Wanted, there: Iterable[GpuInstance]
) -> tuple[list[GpuInstance], list[GpuInstance]]:
    """Return instances that may stay, and those that are too many or have another shape."""
    left = Counter(dict(wanted))
    staying: list[GpuInstance] = []
    extra: list[GpuInstance] = []
    # others' instances first: they are kept rather than ours
    for instance in sorted(
        there, key=lambda instance: (instance.mine, instance.empty, instance.id)
    ):
        if left[instance.profile] > 0 and (instance.whole or (instance.empty and instance.mine)):
            left[instance.profile] -= 1
            staying.append(instance)
        else:
            extra.append(instance)
    return staying, extra


def _missing(wanted: Wanted, kept: Iterable[GpuInstance]) -> list[str]:
    """Return profiles of instances to create, the largest first."""
    left = Counter(dict(wanted))
    left.subtract(instance.profile for instance in kept)
    return sorted(left.elements())


def place(
    missing: Iterable[str], profiles: Mapping[str, MigProfile], kept: Iterable[GpuInstance]
) -> tuple[tuple[MigProfile, MemorySlices], ...] | None:
    """Return a place for each new instance next to those that stay; None if there is no room for
    all.
    """
    taken = {number for instance in kept for number in instance.place.slices()}
    chosen = [profiles[name] for name in missing]
    # largest first; the order of equal ones does not matter
    chosen.sort(
        key=lambda profile: (-profile.places[0].size if profile.places else 0, profile.name)
    )
    tries = 0

    def search(at: int, taken: frozenset[int]) -> list[tuple[MigProfile, MemorySlices]] | None:
        nonlocal tries
        if at == len(chosen):
            return []
        profile = chosen[at]
        for where in sorted(profile.places, key=lambda slices: slices.start):
            tries += 1
            if tries > _TRIES_MAX:
                return None
            slices = where.slices()
            if taken.isdisjoint(slices):
                rest = search(at + 1, taken.union(slices))
                if rest is not None:
                    return [(profile, where), *rest]
        return None

    found = search(0, frozenset(taken))
    return None if found is None else tuple(found)


def told(instances: Iterable[tuple[str, int]]) -> str:
    """Format instances, like ``2 x 1g.18gb, 1 x 3g.71gb``."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(instances)) or "nothing"
