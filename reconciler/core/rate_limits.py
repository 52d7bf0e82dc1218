"""Limits of remediation: if a difference is remediated, how often, and when next.

Policies and the remediations of the last day come in; a ``Stand`` per difference goes out.
Remediations are counted by cause and kept for a day, also while the difference is gone: one that
comes back again and again is given up like one that never goes.
"""

import zlib

import msgspec

from reconciler.core import remedy_log
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.policy.drift_kinds import KINDS, Action, DriftRemedy, RemedyVerb
from reconciler.model.values import quantities, times

#: How long a remediation counts.
REMEMBER_S = 86_400.0
HOUR_S = 3600.0
#: The most remediations that are remembered. The oldest that have ended are dropped first.
REMEDIES_MAX = 5000
#: The longest wait between two remediations of one difference.
BACKOFF_S_MAX = 6 * 3600.0
#: Kinds that ``remediation`` acts on. ``lifecycle`` or the node handles the others at once.
ACTED_ON = frozenset(
    {"gpu-process-foreign", "task-missing", "queue-over-limit", "node-check-failed"}
)
_MESSAGE_CHARACTERS_MAX = 300
#: How long a difference is listed before it is remediated.
LISTED_S = 1.0


class Stand(msgspec.Struct, frozen=True):
    """The state of the remediation of one difference.

    Attributes:
        next_at: when it may be tried next; None: one is open, it was given up, or nothing acts.
        looks_at: when time alone changes this.
    """

    text: str = ""
    tries: int = 0
    next_at: float | None = None
    looks_at: float | None = None
    given_up: bool = False


def action_of(structure: desired.Structure, kind: str, pool: str) -> Action:
    """Return the policy's action for a kind of difference on nodes of a pool.

    Empty pool: of none.
    """
    declared = structure.pools.get(pool)
    if declared is not None and kind in declared.drift:
        return declared.drift[kind]
    return structure.settings.drift.get(kind, KINDS[kind].action)


def idle_reason(structure: desired.Structure, pool: str) -> str:
    """Return why nothing is remediated now; empty if something may be."""
    if structure.settings.suspend:
        return "the cluster is suspended"
    declared = structure.pools.get(pool)
    if declared is not None and declared.observe_only:
        return f"NodePool {pool} is observed only"
    return ""


def shorten(message: str) -> str:
    """Return a node's message on one line, printable and bounded."""
    return task_reports.told_text(message, _MESSAGE_CHARACTERS_MAX)


def _tries(count: int) -> str:
    return quantities.counted(count, "try", "tries")


class RateLimits:
    """The limits of this cycle's remediations.

    Args:
        structure: in force, with policies and limits.
        remedies: of the last day. New ones are added.
        now: seconds since the epoch.
    """

    def __init__(
        self, structure: desired.Structure, remedies: remedy_log.RemedyLog, now: float
    ) -> None:
        self.structure = structure
        self.remedies = remedies
        self.now = now

    def stand_of(self, kind: str, cause: str, pool: str) -> Stand:
        """Return the state of the remediation of a difference."""
        limits = self.structure.settings.remediation
        tried = self.remedies.of_cause(cause)
        count = len(tried)
        why_idle = idle_reason(self.structure, pool)
        if why_idle:
            return Stand(f"would be remedied ({KINDS[kind].remedy}), but {why_idle}", count)
        if not tried:
            next_at = max(self.now, self._rate_at(pool, limits.per_hour))
            return Stand("", 0, next_at, next_at)
        last = tried[-1]
        if last.open:
            return Stand(f"try {count} of {limits.attempts} is under way", count)
        since = last.at if last.ended_at is None else last.ended_at
        wait_s = min(limits.backoff_s * 2.0 ** min(count - 1, 32), BACKOFF_S_MAX)
        detail = f": {last.message}" if last.message else ""
        if count >= limits.attempts:
            ends_at = since + wait_s
            if ends_at <= self.now:
                return Stand(f"given up after {_tries(count)}{detail}", count, given_up=True)
            text = (
                f"the last of {_tries(count)} has to show by {times.format_time(ends_at)}{detail}"
            )
            return Stand(text, count, looks_at=ends_at)
        next_at = max(since + wait_s, self._rate_at(pool, limits.per_hour))
        often = quantities.counted(limits.attempts, "time")
        text = f"tried {count} of {often}, next at {times.format_time(next_at)}{detail}"
        return Stand(text, count, next_at, next_at)

    def may_begin(self, kind: str, cause: str, pool: str) -> bool:
        """Return True if policy and limits allow a remediation now."""
        if action_of(self.structure, kind, pool) != "remediate":
            return False
        next_at = self.stand_of(kind, cause, pool).next_at
        return next_at is not None and next_at <= self.now

    def begin(self, verb: RemedyVerb, cause: str, pool: str, **details: object) -> DriftRemedy:
        """Note a remediation. One that a node carries out is open until the node reports."""
        number = len(self.remedies.of_cause(cause)) + 1
        identity = f"{verb}.{zlib.crc32(cause.encode()):08x}.{int(self.now * 1000)}.{number}"
        open_ = "node" in details
        remedy = DriftRemedy(
            id=identity,
            verb=verb,
            cause=cause,
            pool=pool,
            at=self.now,
            state="ordered" if open_ else "done",
            ended_at=None if open_ else self.now,
            **details,  # type: ignore[arg-type]
        )
        self.remedies.add(remedy)
        return remedy

    def healing_of(self, pool: str, subject: str) -> desired.Healing | None:
        """Return what a pool does about a failed check, ``NODE/CHECK``."""
        declared = self.structure.pools.get(pool)
        return declared.remedies.get(subject.rpartition("/")[2]) if declared else None

    def _rate_at(self, pool: str, per_hour: int) -> float:
        """Return when the pool's rate limit allows another remediation."""
        recent = [
            one.at for one in self.remedies if one.pool == pool and one.at > self.now - HOUR_S
        ]
        return self.now if len(recent) < per_hour else recent[-per_hour] + HOUR_S
