"""Types of a plan: the shape of its JSON, and the input of text and comments.

Nothing is computed here: ``planner`` makes these values, ``plan_text`` and ``pull_request_comment``
show them, the server sends them.
"""

from typing import Literal

import msgspec

from reconciler.model.rules import redaction
from reconciler.operations.views import json_format

Verdict = Literal["none", "changes", "held", "refused"]
#: Why what is shown is no merge, although the second revision does not follow the first.
Apart = Literal["", "unrelated", "behind"]


class ChangeView(json_format.View, frozen=True):
    """An object that differs; ``fields`` maps dotted paths to (before, after).

    ``note`` is why the fields do not take effect at once; empty if they do.
    """

    operation: str
    kind: str
    name: str
    path: str
    summary: str
    fields: dict[str, tuple[str | None, str | None]]
    note: str = ""


class AmountView(json_format.View, frozen=True):
    """A guarantee or limit that changes, in the words of documents; null: none is set."""

    object: str
    field: str
    before: str | None
    after: str | None


class EndedView(json_format.View, frozen=True):
    """Running work that the change itself touches. ``how`` is a word of ``job_impact.How``.

    ``leavesIn_s``: of what is drained, after how long it is told to leave, and of what has a new
    time limit, when that ends it; null: never, or at once.
    """

    job: str
    queue: str
    owner: str
    how: str
    gpus: float
    gpu_hours_lost: float
    nodes: str
    leaves_in_s: float | None


class AboveView(json_format.View, frozen=True):
    """A queue in which more is running than its new limit allows.

    ``limit`` and ``used`` are in the words of documents; ``pool`` is that of a limit in a pool,
    else empty. ``remedied``: the drift policy evicts preemptible work; otherwise everything
    continues.
    """

    queue: str
    resource: str
    limit: str
    used: str
    jobs: int
    pool: str = ""
    remedied: bool = False


class ServiceExitView(json_format.View, frozen=True):
    """Nodes that leave service although their pool keeps them: the change makes them unfit, or
    keeps work away from them.
    """

    pool: str
    nodes: str
    gpus: int
    why: str


class CheckRiskView(json_format.View, frozen=True):
    """The most nodes and GPUs of a pool that may leave by checks of which no result is known.

    ``trial``: the node tries them before the others of its pool get them.
    """

    pool: str
    checks: list[str]
    nodes: int
    gpus: int
    trial: bool = False


class ImpactView(json_format.View, frozen=True):
    """The impact of a change in the cluster's own units. ``approval`` is the digest that approves
    it.
    """

    gpus_before: int
    gpus_after: int
    gpus_leaving: int
    gpus_entering: int
    nodes_leaving: str
    nodes_entering: str
    amounts: list[AmountView]
    queues_removed: list[str]
    queues_added: list[str]
    above: list[AboveView]
    jobs: list[EndedView]
    jobs_ended: int
    gpu_hours_lost: float
    approval: str
    exits: list[ServiceExitView] = []
    risks: list[CheckRiskView] = []


class HeldPartView(json_format.View, frozen=True):
    """A part of a change that waits, after the merge or already, and what lets it apply.

    ``jobs`` are those that it removes. ``message`` has figure and limit; ``digest`` is empty if
    nobody can approve it. ``until`` is when it is evaluated again. ``reasons`` has each reason by
    itself.
    """

    part: str
    rules: list[str]
    jobs: list[str]
    message: str
    digest: str
    command: str
    until: str | None
    reasons: list[str] = []


class EvictionView(json_format.View, frozen=True):
    """A job element that is evicted by the change, for which job, and until when."""

    job: str
    element: int | None
    queue: str
    reason: str
    by: str
    at: str
    in_s: float
    gpu_hours_lost: float
    checkpoints: bool
    back_in_s: float | None


class ShiftView(json_format.View, frozen=True):
    """A job whose start changes. Times are seconds from the snapshot on, and null if they are not
    within the horizon.
    """

    job: str
    queue: str
    is_new: bool
    before_s: float | None
    after_s: float | None
    later_s: float | None
    estimated: bool
    reason: str


class QueueShiftView(json_format.View, frozen=True):
    """Effect on the jobs that wait in a queue."""

    queue: str
    waiting: int
    sooner: int
    later: int
    stuck: int
    freed: int
    later_s: float
    preempted: int


class ForecastView(json_format.View, frozen=True):
    """Both futures beside each other."""

    horizon_s: float
    decided_s: float
    shifts: list[ShiftView]
    evictions: list[EvictionView]
    spared: list[EvictionView]
    queues: list[QueueShiftView]
    endless: int
    cycles: int


class FindingView(json_format.View, frozen=True):
    """Something that speaks against the revision. ``isNew``: it was not there before;
    ``touched``: the change itself wrote it, so that it does not count.

    ``waiver``: who may let it pass, and how; empty where nobody may. ``found``: what stands there,
    which ``message`` says too; empty where that says it otherwise, or it is not to be shown.
    """

    rule: str
    severity: str
    path: str
    line: int
    column: int
    object: str
    field: str
    message: str
    is_new: bool
    touched: bool
    waiver: str
    found: str = ""


class SnapshotView(json_format.View, frozen=True):
    """The cluster that the plan was made against.

    ``revision`` is that of the jobs in force. ``structureRevision`` differs if the structure of
    that revision is held or refused.
    """

    at: str
    age_s: float
    revision: str | None
    digest: str
    structure_revision: str | None = None


class Plan(json_format.View, frozen=True):
    """Everything that a reviewer has to know of a revision.

    ``verdict`` is ``refused`` where something that it writes does not apply, ``held`` where safety
    makes a part of it wait for approval or for its time. ``waiting`` is held already and goes on
    so, whatever becomes of the revision; it is none of its changes. ``structure_refused``: none of
    its structure applies. ``forecast`` is null where there is none, and ``no_forecast`` says why.
    ``not_allowed``: why the controller that is there tells nothing of running work to who asks.
    """

    verdict: Verdict
    held: list[HeldPartView]
    waiting: list[HeldPartView]
    structure_refused: bool
    base: str
    head: str
    merged: bool
    changes: list[ChangeView]
    impact: ImpactView
    forecast: ForecastView | None
    no_forecast: str
    findings: list[FindingView]
    snapshot: SnapshotView | None
    digest: str
    apart: Apart = ""
    not_allowed: str = ""

    def count(self, operation: str) -> int:
        """Return how many objects are added, changed or removed."""
        return sum(change.operation == operation for change in self.changes)


def without_settings(plan: Plan) -> Plan:
    """Return a plan for a caller who may not see everybody's jobs: what changes, without values."""

    def shown(pair: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
        before, after = (None if side is None else redaction.HIDDEN for side in pair)
        return before, after

    changes = [
        msgspec.structs.replace(
            one,
            fields={
                path: (
                    shown(pair)
                    if any(redaction.has_setting(path, side or "") for side in pair)
                    else pair
                )
                for path, pair in one.fields.items()
            },
        )
        if one.kind == "Job"
        else one
        for one in plan.changes
    ]
    findings = [_unquoted(one) for one in plan.findings]
    return msgspec.structs.replace(plan, changes=changes, findings=findings)


def _unquoted(finding: FindingView) -> FindingView:
    """Return the finding without the value that was found, if not everybody may see it."""
    if not finding.found or redaction.may_quote(finding.object, finding.field):
        return finding
    message = finding.message.replace(said_found(finding.found), "", 1)
    return msgspec.structs.replace(finding, message=message, found="")


def said_found(found: str) -> str:
    """Return the part of a message about the value that was found."""
    return f"; found {found}"
