"""Groups reasons: one text for all pending groups and jobs that wait for the same cause.

Block reasons by pending group and by job come in at the end of a cycle; texts with keys go out.
"""

import numpy as np

from reconciler.model.state import pending_reasons
from reconciler.scheduling.causes import BlockKind, BlockReason
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.queues import eligibility
from reconciler.scheduling.reasons import reason_explainer


class Reasons:
    """Reasons by key: one entry for all jobs that wait for the same cause."""

    def __init__(self, explainer: reason_explainer.ReasonExplainer) -> None:
        self.explainer = explainer
        self.found: dict[str, tuple[pending_reasons.Reason, ...]] = {}
        self.of_line: list[str] = []
        self.of_job: dict[str, str] = {}
        self._keys: dict[object, str] = {}

    def lines(self, blocked: eligibility.BlockedJobs, columns: snapshots.PendingColumns) -> None:
        """Return the reason key of each pending group, empty if it was not blocked as a whole.

        Groups of preemptible work share a key over all queues, because their reasons do not depend
        on their own queue, unless its guarantee counts for less, or others lend it only so much.
        """
        situation = self.explainer.situation
        keys = np.full(len(situation.lines), "", dtype=object)
        rows = np.flatnonzero(blocked.cause_of >= 0)
        shared = columns.preemptible & ~self.explainer.bounds.apart[columns.queue]
        queue = np.where(shared, -1, columns.queue)[rows] + 1
        whose = 2 * queue + columns.preemptible[rows]
        width = 2 * (len(situation.queues.names) + 1)
        alike = blocked.cause_of[rows] * len(situation.shapes) + columns.shape[rows]
        _, first, place = np.unique(alike * width + whose, return_index=True, return_inverse=True)
        found = [
            self._key(situation.lines[index], blocked.causes[blocked.cause_of[index]])
            for index in rows[first].tolist()
        ]
        keys[rows] = np.array(found, dtype=object)[place] if found else ""
        self.of_line = keys.tolist()

    def job(self, line: int, claim: snapshots.PendingJob, cause: BlockReason) -> None:
        """Return the reason key of a job with a cause of its own."""
        self.of_job[claim.job] = self._key(self.explainer.situation.lines[line], cause, own=True)

    def judged(self, line: snapshots.PendingGroup) -> None:
        """Decide for jobs of a group that do not start in this cycle if they ever could."""
        never = BlockReason(BlockKind.NEVER, queue=line.queue)
        ever = not pending_reasons.never_starts(self.explainer.reasons_for(line, never))
        for claim in line.claims:
            cause = BlockReason(BlockKind.ARRAY, subject=claim.job, held_back=claim.held_back)
            self.of_job[claim.job] = self._key(line, cause if ever else never)

    def _key(
        self,
        line: snapshots.PendingGroup,
        cause: BlockReason,
        *,
        own: bool = False,
    ) -> str:
        """Return the key of a cause; anything that changes for all at once is no part of it.

        ``own``: of a job that differs from its group, such as one that has started in part.
        """
        shrunk = bool(self.explainer.bounds.shrunk[line.queue])
        apart = bool(self.explainer.bounds.apart[line.queue])
        whose = line.queue if apart or not line.preemptible else -1
        alike = (whose, line.preemptible, line.shape, cause, own)
        key = self._keys.get(alike)
        if key is None:
            reasons = self.explainer.reasons_for(line, cause)
            shape = self.explainer.situation.shapes[line.shape]
            parts = [shape.form or str(line.shape), *cause.key()]
            if own:
                parts.append("own")
            if not line.preemptible:
                parts += ["firm", self.explainer.situation.queues.names[line.queue]]
            elif shrunk:
                parts += ["short", self.explainer.situation.queues.names[line.queue]]
            elif apart:
                parts += ["lent", self.explainer.situation.queues.names[line.queue]]
            if cause.subject:
                parts.append(cause.subject)
            if cause.until is not None:
                parts.append(f"{cause.until:.3f}")  # the subject is not who has this reservation
            key = self._keys[alike] = "/".join(parts)
            self.found.setdefault(key, reasons)
        return key
