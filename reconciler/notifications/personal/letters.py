"""News of jobs gathered to letters: one for each job, and one for all beyond a limit.

Notices come in, letters come out. No time passes here and nothing is sent.
"""

import collections
from collections.abc import Mapping, Sequence

import msgspec

from reconciler.notifications import messages

#: The most letters to one person in a minute.
A_MINUTE_MAX = 10
MINUTE_S = 60.0
#: How long news are gathered before they are sent.
GATHER_S = 2.0
#: The most jobs whose news wait for one receiver; what is more is counted.
JOBS_MAX = 1000
#: The most jobs that a letter about several lists.
LISTED_MAX = 20
#: The longest message of one job.
MESSAGE_CHARACTERS_MAX = 300


class JobNews(msgspec.Struct, frozen=True, rename="camel"):
    """News of one job.

    Attributes:
        job: its name.
        reason, message: of the last thing that happened. at: its time, as RFC 3339.
        counts: how often each thing happened.
        queue, run, cluster: of the job; empty if they are unknown.
    """

    job: str
    reason: messages.Reason
    message: str
    at: str
    counts: dict[str, int]
    queue: str = ""
    run: str = ""
    cluster: str = ""


class Letter(msgspec.Struct, frozen=True):
    """One message to one receiver.

    Attributes:
        jobs: news, one for each job.
        more: jobs or events that are only counted.
        counts: of everything, by reason.
        test: number of a test; 0: this is none.
    """

    jobs: tuple[JobNews, ...] = ()
    more: int = 0
    counts: dict[str, int] = {}
    test: int = 0


class Gathered:
    """News that wait for one receiver."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobNews] = {}
        self._beyond: collections.Counter[str] = collections.Counter()

    def __bool__(self) -> bool:
        return bool(self._jobs or self._beyond)

    def add(self, job: str, notice: messages.Notice) -> None:
        """Add a notice to the news of its job."""
        before = self._jobs.get(job)
        if before is None and len(self._jobs) >= JOBS_MAX:
            self._beyond[notice.reason] += 1
            return
        counts = dict(before.counts) if before else {}
        counts[notice.reason] = counts.get(notice.reason, 0) + 1
        self._jobs[job] = JobNews(
            job,
            notice.reason,
            messages.shortened(notice.message, MESSAGE_CHARACTERS_MAX),
            notice.at,
            counts,
            notice.about.get("queue", ""),
            notice.about.get("run", ""),
            notice.about.get("cluster", ""),
        )

    def take(self, room: int) -> list[Letter]:
        """Return all news as at most ``room`` letters, at least one: the last has the rest."""
        jobs, beyond = list(self._jobs.values()), self._beyond
        self._jobs, self._beyond = {}, collections.Counter()
        if len(jobs) <= room and not beyond:
            return [_letter([one]) for one in jobs]
        singles = min(max(room - 1, 0), len(jobs))
        rest = _letter(jobs[singles:], beyond)
        return [*(_letter([one]) for one in jobs[:singles]), rest]


def _letter(jobs: Sequence[JobNews], beyond: Mapping[str, int] | None = None) -> Letter:
    counts = collections.Counter[str](beyond or {})
    for one in jobs:
        counts.update(one.counts)
    more = max(0, len(jobs) - LISTED_MAX) + sum((beyond or {}).values())
    return Letter(tuple(jobs[:LISTED_MAX]), more, dict(counts))
