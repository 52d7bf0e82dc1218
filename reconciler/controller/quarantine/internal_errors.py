"""Internal errors of Muster: texts, counts, log lines, and the nodes ignored because of them."""

import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from reconciler import metrics
from reconciler.controller.quarantine import cycle_input
from reconciler.core import job_errors
from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.store import errors

log = logging.getLogger("muster.loop")

#: Every log line about an internal error begins with it; the tests of whole clusters look for it.
MARK = desired.INTERNAL_ERROR
#: The rule of a problem that an internal error causes.
RULE = review_findings.UNDECIDED
#: The most different internal errors whose traces are logged.
TRACES_MAX = 1000
#: How long a node is ignored whose report could not be processed.
IGNORED_S = 60.0
#: The most names in one log line.
NAMES_MAX = 20
#: Logged before the process ends.
LAST_WORDS = (
    f"{MARK} prevents every cycle, even without any input: the controller ends. No decision is "
    "lost. To fix: report it with the trace below and, if you may share it, a copy of the store "
    "(`muster backup FOLDER`); the previous version of Muster may work"
)
_ROOTS = ("reconciler", "agents")


class InternalErrors:
    """A counter and log of internal errors.

    It also suppresses those that need not end anything.

    Args:
        counts: by part of the loop, see ``metrics.DEFECT_PARTS``.
        contained: whether the loop survives them; otherwise each is raised where it occurs.
    """

    def __init__(self, counts: dict[str, int], *, contained: bool) -> None:
        self.contained = contained
        self._counts = counts
        self._traced: set[tuple[str, str, str]] = set()
        self._ignored_until: dict[str, float] = {}
        self._unheard: set[str] = set()

    def count(self, part: str, error: Exception) -> None:
        """Count an error, and log its trace the first time."""
        self._counts[part] += 1
        known = (part, type(cause_of(error)).__name__, place_of(error))
        if known in self._traced or len(self._traced) >= TRACES_MAX:
            return
        self._traced.add(known)
        log.error("%s (%s)", MARK, metrics.DEFECT_PARTS[part], exc_info=error)

    @contextlib.contextmanager
    def suppress(self, part: str) -> Iterator[None]:
        """Suppress any error of the block except those of the store."""
        try:
            yield
        except Exception as error:
            if not self.contained or errors.is_of_store(error):
                raise
            self.count(part, error)

    def ignore_nodes(
        self,
        divided: Sequence[cycle_input.CycleInput],
        failed: Sequence[cycle_input.CycleInput],
        now: float,
    ) -> None:
        """Log which input made cycles raise, and ignore the nodes that sent it for a while.

        Args:
            divided: sources whose input was processed piece by piece.
            failed: sources and pieces that were left out.
            now: seconds since the epoch.
        """
        log.error(
            "%s: input of %s %s; the nodes among them are ignored for %.0f s",
            MARK,
            shorten([part.name for part in failed or divided]),
            "was left out" if failed else "was processed piece by piece",
            IGNORED_S,
        )
        self._ignored_until = {
            node: until for node, until in self._ignored_until.items() if until > now
        }
        for part in (*divided, *failed):
            self._ignored_until |= {report.node: now + IGNORED_S for report in part.reports}
        for part in failed:
            self._unheard |= {report.node for report in part.reports if part.is_notice}

    def ignores_any(self, now: float) -> bool:
        """Return True if any node is ignored."""
        return any(until > now for until in self._ignored_until.values())

    def unheard(self, received: cycle_input.CycleInput) -> tuple[str, ...]:
        """Return the nodes none of whose reports can be processed, except those that sent one."""
        return tuple(sorted(self._unheard.difference(report.node for report in received.reports)))

    def heard(self, received: cycle_input.CycleInput) -> None:
        """Note that a cycle has processed this input."""
        self._unheard.difference_update(report.node for report in received.reports)

    def is_unheard(self, node: str) -> bool:
        """Return True if none of a node's reports can be processed."""
        return node in self._unheard

    def is_ignored(self, node: str, now: float) -> bool:
        """Return True if a node is ignored."""
        until = self._ignored_until.get(node)
        return until is not None and now < until <= now + IGNORED_S


def cause_of(error: BaseException) -> BaseException:
    """Return the error itself if it was raised about a job that the core names."""
    if isinstance(error, job_errors.JobError) and error.__cause__ is not None:
        return error.__cause__
    return error


def place_of(error: BaseException) -> str:
    """Return file, line and function of Muster that raised an error. It has no user's data."""
    found = "an unknown place"
    for frame in traceback.extract_tb(cause_of(error).__traceback__):
        parts = Path(frame.filename).parts
        for root in _ROOTS:
            if root in parts:
                start = len(parts) - 1 - parts[::-1].index(root)
                found = f"{'/'.join(parts[start:])}, line {frame.lineno}, in {frame.name}"
    return found


def describe(error: Exception, prevented: str, effect: str) -> str:
    """Return what people read about an internal error: what it prevented, and what holds now."""
    return (
        f"{MARK} prevented {prevented}: {type(cause_of(error)).__name__} in {place_of(error)}; "
        f"{effect}. To fix: report it with the trace in the controller's log"
    )


def revision_problem(error: Exception) -> desired.Problem:
    """Return the problem of a revision that was refused as a whole."""
    message = describe(
        error, "this revision from being applied", "the last good revision stays in force"
    )
    return desired.Problem(RULE, "error", "", message)


def describe_job(error: Exception, effect: str) -> str:
    """Return the message of a quarantined job."""
    return describe(error, "this job from being processed", f"{effect}, and it is retried later")


def describe_unread(error: Exception) -> str:
    """Return the message shown while the repository can't be read."""
    return describe(
        error,
        "the repository from being read",
        "what is in force stays, and the repository is read again later",
    )


def with_problems(
    status: desired.SyncStatus, problems: Sequence[desired.Problem]
) -> desired.SyncStatus:
    """Return the status of a revision some of whose jobs are quarantined."""
    if not problems:
        return status
    return msgspec.structs.replace(
        status,
        sync="OutOfSync",
        message=f"{len(problems)} of its jobs could not be processed",
        problems=(*problems, *status.problems),
    )


def shorten(names: Sequence[str]) -> str:
    """Return names for a log line."""
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
