"""The shapes of jobs: jobs that request the same share one, so that it is computed once.

Jobs come in; indexes of shapes go out, with the eligible nodes of each and why the others are not.
A step of the eligibility funnel is one mask over all nodes.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from reconciler.core import cycle_cache
from reconciler.core.cycle import cycle_nodes
from reconciler.core.snapshot import node_columns, owner_users
from reconciler.core.snapshot.owner_users import UserClass
from reconciler.model import desired
from reconciler.model.observed.devices import INNER_LEVELS
from reconciler.model.observed.storage import VolumeState
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import FunnelStep, Reason
from reconciler.model.values import found_values
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE

#: Points that a node loses for a soft taint that is not tolerated.
_SOFT_TAINT = 1e6
#: The most shapes that are cached. With more, the cache is cleared.
FORMS_MAX = 10_000

Selector = tuple[tuple[str, str], ...]
Holds = Callable[[desired.Pool], bool]
_Facts = tuple[Mapping[str, str], bool, tuple[VolumeState, ...]]


def labels_of(spec: desired.Job) -> dict[str, str]:
    """Return the labels that affinities match: a job's own, and the names of job and queue."""
    return {**spec.labels, "job": spec.name, "queue": spec.queue}


def is_matched(selector: Selector, spec: desired.Job) -> bool:
    """Return True if a selector matches a job."""
    labels = labels_of(spec)
    return all(labels.get(key) == value for key, value in selector)


class Selectors:
    """The label selectors of affinities, numbered."""

    def __init__(self, specs: Iterable[desired.Job]) -> None:
        found = {one.labels for spec in specs for one in spec.affinities}
        self.all: tuple[Selector, ...] = tuple(sorted(found))
        self.index = {selector: number for number, selector in enumerate(self.all)}

    def matching(self, spec: desired.Job) -> tuple[int, ...]:
        """Return the indexes of the selectors that match a job."""
        if not self.all:
            return ()
        return tuple(i for i, selector in enumerate(self.all) if is_matched(selector, spec))


class _Known(cycle_cache.CachePart):
    """A cache of shapes, and what they were made of.

    Attributes:
        epoch: another object whenever everything was forgotten.
    """

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.epoch = object()
        self._frame: tuple[object, ...] = ()
        self._selectors: tuple[Selector, ...] = ()
        self._facts: dict[str, _Facts] = {}
        self.forms: dict[tuple[object, ...], str] = {}
        self.by_form: dict[str, tuple[snapshots.Shape, Reason | None]] = {}
        self.masks: dict[tuple[str, str], snapshots.Mask] = {}
        #: Masks of nodes of some pools with some labels.
        self.opened: dict[tuple[tuple[str, ...], Selector], snapshots.Mask] = {}
        self.eligible: dict[tuple[object, ...], _Eligible] = {}
        #: By class of users, the nodes that run none of their tasks.
        self.closed: dict[UserClass, snapshots.Mask] = {}

    def renew(
        self,
        structure: desired.Structure,
        table: node_columns.NodeTable,
        nodes: cycle_nodes.CycleNodes,
        selectors: Selectors,
    ) -> None:
        """Forget everything if its basis changed."""
        frame = (structure, table.pool_of)  # a new array when nodes come or go
        same = len(self._frame) == len(frame) and all(
            known is now for known, now in zip(self._frame, frame, strict=True)
        )
        changed = self.take_nodes(nodes.renewed)
        if (
            same
            and self._selectors == selectors.all
            and len(self.by_form) <= FORMS_MAX
            and all(self._facts.get(name) == _facts(nodes.get(name)) for name in changed)
        ):
            return
        self._frame, self._selectors = frame, selectors.all
        self._facts = {name: _facts(nodes.get(name)) for name in nodes.names()}
        self.epoch, self.closed = object(), {}
        for cached in (self.forms, self.by_form, self.masks, self.opened, self.eligible):
            cached.clear()


def _facts(node: records.NodeRecord | None) -> _Facts:
    """Return the parts of a node's report that decide who may run there."""
    if node is None:
        return {}, False, ()
    return node.inventory.labels, node.inventory.runs_as_root, node.inventory.volumes


class Shapes:
    """The shapes of one cycle. Each is computed once, and numbered again in each cycle.

    Args:
        cache: of earlier cycles.
        structure: in force.
        table: columns of nodes.
        nodes: their records.
        selectors: of affinities.

    Attributes:
        numbered: the shapes of this cycle.
        structure: in force.
        table: columns of nodes.
        selectors: of affinities.
        epoch: another object whenever the cache of shapes was cleared.
    """

    def __init__(
        self,
        cache: cycle_cache.CycleCache,
        structure: desired.Structure,
        table: node_columns.NodeTable,
        nodes: cycle_nodes.CycleNodes,
        selectors: Selectors,
    ) -> None:
        self.structure = structure
        self.table = table
        self.selectors = selectors
        self._nodes = nodes
        self._known = cache.part(_Known)
        self._known.renew(structure, table, nodes, selectors)
        self._number: dict[str, int] = {}
        self.numbered: list[snapshots.Shape] = []
        self.epoch = self._known.epoch

    def shape_of(self, spec: desired.Job) -> tuple[int, Reason | None]:
        """Return the shape's index, or the reason why no node may run work of this owner."""
        form = self.form(spec)
        shape, refusal = self._known.by_form[form]
        number = self._number.get(form)
        if number is None:
            number = self._number[form] = len(self.numbered)
            self.numbered.append(shape)
        return number, refusal

    def offered(self, spec: desired.Job) -> str | None:
        """Return the form of a job; None if no node may run work of its owner."""
        form = self.form(spec)
        return form if self._known.by_form[form][1] is None else None

    def number(self, forms: Iterable[str]) -> Mapping[str, int]:
        """Number forms in an order that depends on them alone."""
        for form in sorted(forms):
            self._number[form] = len(self.numbered)
            self.numbered.append(self._known.by_form[form][0])
        return dict(self._number)

    def form(self, spec: desired.Job) -> str:
        """Return what identifies the shape of a job, the same in every process."""
        groups = tuple(
            [
                (
                    g.name,
                    g.count,
                    g.resources,
                    g.minimum,
                    g.devices,
                    g.gpu_memory_bytes,
                    g.mig_profile,
                    g.topology,
                )
                for g in spec.groups
            ]
        )
        company = (
            (spec.node_preferences, spec.affinities, spec.topology, spec.placement, spec.exclusive)
            if spec.affinities
            or spec.node_preferences
            or spec.exclusive
            or spec.placement
            or spec.topology != desired.ANYWHERE
            else None
        )
        matches = self.selectors.matching(spec)
        key: tuple[object, ...] = (groups, self._where(spec), company, matches)
        if any(group.inner for group in spec.groups):
            key = (
                *key,
                tuple([(group.inner_required, group.inner_preferred) for group in spec.groups]),
            )
        if any(group.tasks_per_node for group in spec.groups):
            key = (*key, "nodes", tuple([group.tasks_per_node for group in spec.groups]))
        known = self._known
        form = known.forms.get(key)
        if form is None:
            form = known.forms[key] = hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()
            known.by_form[form] = self._make(spec, matches, form)
        return form

    def _where(self, spec: desired.Job) -> tuple[object, ...]:
        user = owner_users.class_of(self.structure, spec.owner)
        selector = tuple(sorted(spec.node_selector.items())) if spec.node_selector else ()
        hosts = (spec.hosts, spec.exclude_hosts)
        return (spec.pools, selector, hosts, user, spec.tolerations, spec.storage)

    def _make(
        self, spec: desired.Job, matches: tuple[int, ...], form: str
    ) -> tuple[snapshots.Shape, Reason | None]:
        where = self._where(spec)
        eligible = self._known.eligible
        if where not in eligible:
            eligible[where] = self._look(spec)
        found = eligible[where]
        unknown = sorted(required_levels(spec) - set(self.table.levels))
        if unknown:
            found = found.without(f"no pool declares level {unknown[0]}")
        level = self.table.level_of
        settings = self.structure.settings.scheduling
        shape = snapshots.Shape(
            groups=tuple(group_shape(group, self.table) for group in spec.groups),
            eligible=found.mask,
            filtered=found.steps,
            mountable=found.mountable(),
            missing=found.missing,
            mends=found.mends(),
            scores=self._scores(spec),
            required_level=level(spec.topology.required),
            preferred_level=level(spec.topology.preferred),
            strategy=spec.placement or settings.placement,
            exclusive=spec.exclusive,
            affinities=tuple(
                snapshots.AffinityTerm(
                    self.selectors.index[one.labels],
                    level(one.level),
                    one.apart,
                    one.weight or 0.0,
                )
                for one in spec.affinities
            ),
            matches=matches,
            form=form,
            pools=spec.pools,
        )
        return shape, found.refusal(spec.owner)

    def eligible(self, pools: tuple[str, ...], selector: Selector) -> snapshots.Mask:
        """Return the mask of nodes of some pools (none: all) with some labels."""
        mask = self._known.opened.get((pools, selector))
        if mask is None:
            mask = self.table.pool_of >= 0
            if pools:
                mask &= self._in_pools(lambda pool: pool.name in pools)
            for label, value in selector:
                mask &= self._having(label, value)
            self._known.opened[pools, selector] = mask
        return mask

    # Nodes

    def _in_pools(self, holds: Holds) -> snapshots.Mask:
        table = np.array([holds(pool) for pool in self.table.pools] + [False], dtype=np.bool_)
        return table[self.table.pool_of]

    def _having(self, label: str, value: str) -> snapshots.Mask:
        """Return the mask of nodes that have a label.

        The pool's value counts before the agent's.
        """
        mask = self._known.masks.get((label, value))
        if mask is None:
            mask = np.zeros(len(self.table.names), dtype=np.bool_)
            for row, name in enumerate(self.table.names):
                number = self.table.pool_of[row]
                node = self._nodes.get(name)
                if number >= 0 and node is not None:
                    pool = self.table.pools[number]
                    own = node.inventory.labels
                    mask[row] = desired.label_of(name, pool, own, label) == value
            self._known.masks[label, value] = mask
        return mask

    def _look(self, spec: desired.Job) -> "_Eligible":
        """Return which nodes a job may use, and why not the others, in order of precedence."""
        found = _Eligible(len(self.table.names))
        found.keep(self.table.pool_of >= 0, "in no pool")
        if spec.pools:
            why = f"not in pool {' or '.join(spec.pools)}"
            mend = "name another pool too"
            found.keep(self._in_pools(lambda pool: pool.name in spec.pools), why, mend)
        observed = self._in_pools(lambda pool: pool.observe_only)
        found.keep(~observed, "only observed (mode: observe)")
        for name in spec.storage:
            volume = self.structure.volumes.get(name)
            if volume is None:
                found.keep(np.zeros_like(found.mask), f"no volume {name} is declared")
            elif volume.pools:
                there = self._in_pools(lambda pool, v=volume: pool.name in v.pools)  # type: ignore[misc]
                found.keep(there, f"without volume {name}")
            if volume is not None and volume.objects is None:
                for why, lacking in self._lacking(name):
                    found.lack(~lacking, why, name)
        if spec.hosts:
            named = np.isin(self.table.names, spec.hosts)
            none = "" if named.any() else f" ({found_values.few(spec.hosts)})"
            found.keep(named, f"not in spec.hosts{none}", "name more nodes in spec.hosts")
        if spec.exclude_hosts:
            named = np.isin(self.table.names, spec.exclude_hosts)
            found.keep(~named, "in spec.excludeHosts", "name fewer nodes in spec.excludeHosts")
        for label, value in sorted(spec.node_selector.items()):
            found.keep(
                self._having(label, value),
                f"without label {label}={value}",
                f"add label {label}={value} to a node, or change spec.nodeSelector",
            )
        minded = sorted(
            {
                taint.text()
                for pool in self.table.pools
                for taint in pool.taints
                if taint.hard and not spec.tolerates(taint)
            }
        )
        for text in minded:
            tainted = self._in_pools(
                lambda pool, t=text: any(one.hard and one.text() == t for one in pool.taints)  # type: ignore[misc]
            )
            mend = f"name taint {text} in spec.tolerations"
            found.keep(~tainted, f"with taint {text}, not tolerated", mend)
        user = owner_users.class_of(self.structure, spec.owner)
        if user is not UserClass.OTHER:
            before = int(found.mask.sum())
            found.keep(~self._closed_to(user), owner_users.CLOSED[user])
            found.closed_to = user if before > int(found.mask.sum()) else None
        return found

    def _lacking(self, volume: str) -> list[tuple[str, snapshots.Mask]]:
        """Return the nodes that report a volume as missing, by what they report."""
        found: dict[str, snapshots.Mask] = {}
        for row, name in enumerate(self.table.names):
            node = self._nodes.get(name)
            for one in node.inventory.volumes if node is not None else ():
                if one.name == volume and one.problem:
                    why = f"volume {volume}: {one.problem}"
                    mask = found.setdefault(why, np.zeros(len(self.table.names), dtype=np.bool_))
                    mask[row] = True
        return sorted(found.items())

    def _closed_to(self, user: UserClass) -> snapshots.Mask:
        """Return the mask of nodes with a root agent whose pools run no tasks of such a user."""
        closed = self._known.closed
        if user not in closed:
            mask = np.zeros(len(self.table.names), dtype=np.bool_)
            for row, name in enumerate(self.table.names):
                node = self._nodes.get(name)
                mask[row] = node is not None and node.inventory.runs_as_root
            closed[user] = mask & ~self._in_pools(owner_users.OPEN_TO[user])
        return closed[user]

    def _scores(self, spec: desired.Job) -> NDArray[np.float64] | None:
        soft = self._in_pools(
            lambda pool: any(not t.hard and not spec.tolerates(t) for t in pool.taints)
        )
        if not spec.node_preferences and not soft.any():
            return None
        scores = np.where(soft, -_SOFT_TAINT, 0.0)
        for preference in spec.node_preferences:
            liked = np.ones(len(scores), dtype=np.bool_)
            for label, value in preference.labels:
                liked &= self._having(label, value)
            scores[liked] += preference.weight
        return scores


class _Eligible:
    """A mask over nodes that narrows step by step."""

    def __init__(self, count: int) -> None:
        self.mask: snapshots.Mask = np.ones(count, dtype=np.bool_)
        self.steps: tuple[FunnelStep, ...] = ()
        #: The class of users whose tasks some nodes do not run, if that narrowed the mask.
        self.closed_to: UserClass | None = None
        #: By remedy, the nodes that only this rules out so far.
        self._alone: dict[str, snapshots.Mask] = {}
        #: Volumes that are missing on nodes that are eligible otherwise.
        self.missing: tuple[str, ...] = ()
        #: The nodes that would be eligible with those volumes.
        self._mounted = self.mask.copy()

    def keep(self, mask: snapshots.Mask, why: str, mend: str = "") -> None:
        """Keep only nodes in ``mask``, and count the others.

        ``mend`` is what would make them eligible, if that fits in a sentence.
        """
        alone = self.mask & ~mask
        self._drop(mask, why)
        self._mounted &= mask
        self._alone = {words: nodes & mask for words, nodes in self._alone.items()}
        if mend and alone.any():
            self._alone[mend] = alone

    def mends(self) -> tuple[tuple[str, snapshots.Mask], ...]:
        """Return what would make nodes eligible that nothing else rules out, and which nodes."""
        return tuple((mend, nodes) for mend, nodes in self._alone.items() if nodes.any())

    def lack(self, mask: snapshots.Mask, why: str, volume: str) -> None:
        """Do the same as ``keep`` for nodes that lack a volume, which may appear at any time."""
        if volume not in self.missing and bool((self._mounted & ~mask).any()):
            self.missing += (volume,)
        self._drop(mask, why)
        self._alone = {words: nodes & mask for words, nodes in self._alone.items()}

    def mountable(self) -> snapshots.Mask | None:
        """Return the nodes that only a missing volume rules out, if any."""
        found = self._mounted & ~self.mask
        return found if found.any() else None

    def _drop(self, mask: snapshots.Mask, why: str) -> None:
        left = self.mask & mask
        lost = int(self.mask.sum()) - int(left.sum())
        if lost:
            self.steps += (FunnelStep(lost, why),)
        self.mask = left

    def without(self, why: str) -> "_Eligible":
        """Return the same with no node left, for one more reason."""
        other = _Eligible(len(self.mask))
        other.mask, other.steps, other.missing = self.mask, self.steps, self.missing
        other.keep(np.zeros_like(self.mask), why)
        return other

    def refusal(self, owner: str) -> Reason | None:
        """Return why no node may run work of an owner, if only its Unix user is the cause."""
        if self.closed_to is None or self.mask.any():
            return None
        return owner_users.refusal(self.closed_to, owner)


def required_levels(spec: desired.Job) -> set[str]:
    """Return the topology levels without which a job can't start."""
    groups = [group.topology for group in spec.groups]
    found = {spec.topology.required}
    found |= {one.required for one in groups} | {one.slice_level for one in groups}
    found |= {one.level for one in spec.affinities if one.weight is None and not one.apart}
    return found - {""}


def group_shape(
    group: desired.TaskGroup, nodes: node_columns.NodeTable
) -> snapshots.TaskGroupShape:
    """Return a task group as the scheduler reads it."""
    devices, share = devices_of(group.devices, group.resources.gpu_milli)
    topology = group.topology
    return snapshots.TaskGroupShape(
        name=group.name,
        count=group.count,
        amounts=group.resources.as_vector(),
        minimum=group.minimum,
        per_node=group.tasks_per_node or 0,
        devices=devices,
        share=share,
        share_bytes=group.gpu_memory_bytes,
        profile=nodes.profile_of(group.mig_profile) if group.mig_profile else -1,
        required_level=nodes.level_of(topology.required),
        preferred_level=nodes.level_of(topology.preferred),
        slice_size=topology.slice_size,
        slice_level=nodes.level_of(topology.slice_level),
        inner=INNER_LEVELS.index(group.inner) if group.inner else snapshots.NO_LEVEL,
        inner_preferred=bool(group.inner_preferred),
    )


def devices_of(devices: int, gpu_milli: int) -> tuple[int, int]:
    """Return the devices of a task, and milli-GPUs of each.

    With ``devices`` 0 by its milli-GPUs.
    """
    if devices:
        return devices, WHOLE
    return (1, gpu_milli) if 0 < gpu_milli < WHOLE else (gpu_milli // WHOLE, WHOLE)
