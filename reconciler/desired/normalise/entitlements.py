"""Finds starts that limits, guarantees, lending and quotas as written can never allow.

A job comes in with the structure; a warning with the arithmetic goes out. Amounts by pool are left
to the scheduler, because the pool of a job is not written.
"""

import functools
from collections.abc import Iterable, Iterator

import msgspec

from reconciler.desired.documents.faults import Fault
from reconciler.model import desired
from reconciler.model.policy import queue_paths
from reconciler.model.rules import guarantees, quota_limits
from reconciler.model.values import quantities, resources

#: The rules of what is said of such jobs.
RULES = frozenset(
    {
        *("never-within-limit", "never-within-guarantee", "never-within-lending"),
        "never-within-quota",
    }
)

#: Of one queue: what work that may not borrow has to fit into, and the most that it could ever
#: have; None where nothing is a bound.
Bounds = tuple[tuple[int | None, ...], tuple[int | None, ...]]


def least_of(job: desired.Job) -> resources.Resources:
    """Return the resources of the tasks of a job that must start together."""
    return sum(
        (group.resources.times(group.least) for group in job.groups), start=resources.Resources()
    )


class Beyond(msgspec.Struct, frozen=True):
    """A request for more of a resource than there can be; ``fault`` is its message."""

    fault: Fault
    resource: int
    bound: int


def smallest(found: Iterable[Beyond | None]) -> list[Fault]:
    """Return the smallest of several bounds on one resource, the first of equal ones."""
    least: dict[int, Beyond] = {}
    for one in found:
        if one is not None and (one.resource not in least or one.bound < least[one.resource].bound):
            least[one.resource] = one
    return [one.fault for one in least.values()]


class Entitlements:
    """Amounts that one structure lets each of its queues have, computed on first use."""

    def __init__(self, structure: desired.Structure) -> None:
        self._structure = structure
        self._parents = {name: queue.parent for name, queue in structure.queues.items()}
        self._bounds: dict[str, Bounds] | None = None
        self._has_limits = any(
            amount is not None
            for queue in structure.queues.values()
            for amount in queue.limit.as_vector()
        )

    def bounds(self) -> dict[str, Bounds]:
        """Return the bounds of each queue by its own guarantee and those of others."""
        if self._bounds is None:
            self._bounds = self._found()
        return self._bounds

    def _found(self) -> dict[str, Bounds]:
        tree = self._structure.queues
        above = guarantees.parents(tree)
        guaranteed, rationed = guarantees.guaranteed(tree, above), guarantees.rationed(tree)
        somebody = [any(row[resource] for row in guaranteed) for resource in range(3)]
        most = None
        if self._structure.pools and any(
            amount is not None for q in tree.values() for amount in q.lending_limit.as_vector()
        ):
            lent = [
                [own if lends is None else lends for own, lends in zip(row, value, strict=True)]
                for row, value in zip(
                    guaranteed, (q.lending_limit.as_vector() for q in tree.values()), strict=True
                )
            ]
            most = guarantees.Most(
                guarantees.paths(above),
                owed=guaranteed,
                lent=lent,
                measured=rationed,
                whole=self._whole(),
            )
        found: dict[str, Bounds] = {}
        for row, name in enumerate(tree):
            firm = tuple(
                guaranteed[row][r] if somebody[r] and rationed[row][r] else None for r in range(3)
            )
            found[name] = (firm, tuple(None if most is None else most.of(row, r) for r in range(3)))
        return found

    def _whole(self) -> tuple[int, ...]:
        """Return the capacity of all possible nodes."""
        pools = self._structure.pools.values()
        nothing = resources.Resources()
        found = sum((pool.promised().times(len(pool.nodes)) for pool in pools), start=nothing)
        return found.as_vector()

    def beyond(self, job: desired.Job) -> list[Beyond]:
        """Return the limits, the guarantee and the lending limit that a job exceeds."""
        if job.queue not in self._parents:
            return []
        amounts = least_of(job).as_vector()
        above = [job.queue, *queue_paths.ancestors(job.queue, self._parents.get)]
        guarantee = None if job.preemptible else self._beyond_guarantee(amounts, above)
        # of what asks for memory of GPUs nobody knows which part of one that comes to
        by_memory = any(group.gpu_memory_bytes for group in job.groups)
        lending = None if by_memory else self._beyond_lending(amounts, job.queue)
        found = (*self._beyond_limits(amounts, above), guarantee, lending)
        return [one for one in found if one is not None]

    def _beyond_limits(self, amounts: tuple[int, ...], above: list[str]) -> Iterator[Beyond]:
        """Return the limits of queues that a start exceeds by itself."""
        for name in above if self._has_limits else ():
            queue = self._structure.queues.get(name)
            for resource, limit in enumerate(queue.limit.as_vector() if queue else ()):
                if limit is not None and amounts[resource] > limit:
                    text = functools.partial(quantities.format_resource, resource)
                    asked = f"{text(amounts[resource])} asked for what starts together"
                    fault = Fault(
                        "never-within-limit",
                        quota_limits.beyond_limit_text(asked, name, text(limit)),
                        ("spec", "queue"),
                        severity="warning",
                    )
                    yield Beyond(fault, resource, limit)

    def _beyond_guarantee(self, amounts: tuple[int, ...], above: list[str]) -> Beyond | None:
        """Return the guarantee exceeded by work that may not borrow."""
        bounds = self.bounds()
        for queue in above:
            for resource, bound in enumerate(bounds[queue][0] if queue in bounds else ()):
                if bound is not None and amounts[resource] > bound:
                    text = functools.partial(quantities.format_resource, resource)
                    fault = Fault(
                        "never-within-guarantee",
                        f"{text(amounts[resource])} asked for what starts together, more than "
                        f"is guaranteed to queue {queue}, {text(bound)}: work that is not "
                        "preemptible may not borrow, and can't start",
                        ("spec", "queue"),
                        severity="warning",
                    )
                    return Beyond(fault, resource, bound)
        return None

    def _beyond_lending(self, amounts: tuple[int, ...], queue: str) -> Beyond | None:
        """Return the excess over the queue's guarantee plus everything that others would
        ever lend.
        """
        firm, most = self.bounds()[queue]
        for resource, bound in enumerate(most):
            if bound is not None and amounts[resource] > bound:
                text = functools.partial(quantities.format_resource, resource)
                own = firm[resource] or 0
                rest = max(0, bound - own)
                be = "is" if resource == 1 or text(rest).startswith("1 ") else "are"
                fault = Fault(
                    "never-within-lending",
                    f"{text(amounts[resource])} asked for what starts together, more than "
                    f"queue {queue} can ever have, {text(bound)}: {text(own)} guaranteed to it, "
                    f"and {text(rest)} that {be} nobody's own or that others lend",
                    ("spec", "queue"),
                    severity="warning",
                )
                return Beyond(fault, resource, bound)
        return None

    def beyond_quota(self, job: desired.Job) -> Fault | None:
        """Return a quota that is less than one start asks for."""
        quotas = self._structure.quotas
        if not quotas or job.queue not in self._parents:
            return None
        above = [job.queue, *queue_paths.ancestors(job.queue, self._parents.get)]
        groups = self._structure.access.groups_of(job.owner)
        amounts = least_of(job).as_vector()
        for quota in quotas.values():
            if quota.holds_for(job.owner, groups, above):
                never = quota_limits.never(quota, job, amounts)
                if never is not None:
                    rule = "never-within-quota"
                    return Fault(rule, never.message, ("spec",), severity="warning")
        return None
