"""Counts and logs defects of Muster, and remembers which nodes are not listened to for theirs."""

import contextlib
import logging
from collections.abc import Iterator, Sequence

from reconciler import metrics
from reconciler.controller.quarantine import isolate_failures
from reconciler.desired.apply import job_quarantine
from reconciler.model import desired
from reconciler.store import errors

log = logging.getLogger("muster.loop")

#: The most different defects whose traces are logged.
TRACES_MAX = 1000


class Defects:
    """Counts and logs defects, and lets those pass that need not end anything.

    Args:
        counts: by part of the loop, see ``metrics.DEFECT_PARTS``.
        contained: whether the loop outlives them; where not, each is raised where it occurs.
    """

    def __init__(self, counts: dict[str, int], *, contained: bool) -> None:
        self.contained = contained
        self._counts = counts
        self._traced: set[tuple[str, str, str]] = set()
        self._aside: dict[str, float] = {}
        self._unheard: set[str] = set()

    def note(self, part: str, defect: Exception) -> None:
        """Count it, and log its trace where that was not logged yet."""
        self._counts[part] += 1
        known = (part, type(defect).__name__, isolate_failures.place_of(defect))
        if known in self._traced or len(self._traced) >= TRACES_MAX:
            return
        self._traced.add(known)
        log.error("%s (%s)", isolate_failures.MARK, metrics.DEFECT_PARTS[part], exc_info=defect)

    @contextlib.contextmanager
    def spare(self, part: str) -> Iterator[None]:
        """Go on behind the block whatever it raises, but for what the store says."""
        try:
            yield
        except Exception as defect:
            if not self.contained or errors.is_of_store(defect):
                raise
            self.note(part, defect)

    def explain(
        self,
        found: isolate_failures.QuarantineResult | None,
        newer: desired.Desired,
        defect: Exception,
        now: float,
        sifted: isolate_failures.Sifted | None,
    ) -> None:
        """Say what became of a cycle that raised ``defect`` by ``newer``."""
        if found is None:
            self.note("input", defect)
            log.critical(isolate_failures.LAST_WORDS)
            return
        if sifted is not None:
            self._explain_jobs(newer, sifted, defect)
        if (sifted is None and not found.by_jobs) or found.left_out:
            self.note("input", defect)
        if found.apart or found.left_out:
            self._leave_out(found, now)

    def _explain_jobs(
        self, newer: desired.Desired, sifted: isolate_failures.Sifted, defect: Exception
    ) -> None:
        """Say what of a revision is refused, and what each job raised by itself."""
        revision = newer.status.attempted_revision or "what git asks for"
        if not sifted.apart:
            self.note("revision", defect)
            if not sifted.is_whole:
                log.error("%s: %s", revision, isolate_failures.problem_of(defect).message)
        for raised in sifted.defects:
            self.note("job", raised)
        for tried in (True, False):
            names = [f"job {one.name}" for one in sifted.apart if one.tried is tried]
            if names:
                log.error(
                    "%s: no cycle passed with %s as written there; what was in force of them stays "
                    "so, and all else of it applies"
                    if tried
                    else "%s: %s were not come to, and are tried again in a moment",
                    revision,
                    isolate_failures.listed(names),
                )

    def _leave_out(self, found: isolate_failures.QuarantineResult, now: float) -> None:
        """Say what of the input no cycle passed with, and don't listen to those nodes for now."""
        log.error(
            "no cycle passed with what was said by %s: %s; nodes among them are not listened to "
            "for %.0f s",
            isolate_failures.listed([one.name for one in found.left_out or found.apart]),
            "that is left out" if found.left_out else "it was taken piece by piece",
            isolate_failures.ASIDE_S,
        )
        self._aside = {node: until for node, until in self._aside.items() if until > now}
        for one in (*found.apart, *found.left_out):
            self._aside |= {report.node: now + isolate_failures.ASIDE_S for report in one.reports}
        for one in found.left_out:
            self._unheard |= {report.node for report in one.reports if one.is_notice}

    def explain_jobs_aside(
        self, found: Sequence[job_quarantine.QuarantinedJob], raised: Sequence[Exception]
    ) -> None:
        """Say which jobs are left out, by which cycles raised, and what each of them raised."""
        for one in raised:
            self.note("job", one)
        if found:
            log.error(
                "no cycle passes with %s, for which it came to their turn, or room: nothing is "
                "decided about them; they are tried again later",
                isolate_failures.listed([f"job {one.name}" for one in found]),
            )

    def is_doubted(self, now: float) -> bool:
        """Whether some node is not listened to."""
        return any(until > now for until in self._aside.values())

    def unheard(self, came: isolate_failures.CycleInput) -> tuple[str, ...]:
        """Nodes of which nothing can be decided that they say, but for those that say something."""
        return tuple(sorted(self._unheard.difference(one.node for one in came.reports)))

    def heard(self, came: isolate_failures.CycleInput) -> None:
        """A cycle passed with this."""
        self._unheard.difference_update(one.node for one in came.reports)

    def is_unheard(self, node: str) -> bool:
        """Whether nothing at all can be decided of what a node says."""
        return node in self._unheard

    def is_aside(self, node: str, now: float) -> bool:
        """Whether a node is not listened to."""
        until = self._aside.get(node)
        return until is not None and now < until <= now + isolate_failures.ASIDE_S
