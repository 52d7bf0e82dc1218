"""A controller's claim to lead a cluster, renewed in git, and what another's record there means.

Called by the thread that follows the repository. A store that is not the one that led last, or is
behind it, may not know what runs: its controller asks first (``adoption``). While another store's
lease lasts, it leads nothing at all.
"""

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from reconciler.changes import lead_records, notes
from reconciler.desired.git import git_commands, source
from reconciler.model import desired
from reconciler.model.values import times

log = logging.getLogger("muster.controller")

#: How long nobody else may lead after the record was renewed, and how often it is.
LEASE_S = 300.0
RENEW_EVERY_S = LEASE_S / 3
#: How often the record of another leader is read again, and a failed write is tried again.
LOOK_EVERY_S = 10.0


class LeadVerdict(NamedTuple):
    """A judgement of a store by the record in git.

    Attributes:
        past: why the store may not know all that was run; empty: it does.
        blocked: why nothing may be led now; empty: it may.
        store: identity of the store from now on.
        new_files: files that came after all that the last leader had in force.
    """

    past: str = ""
    blocked: str = ""
    store: str = ""
    new_files: frozenset[str] = frozenset()


class LedBy(NamedTuple):
    """The controller that claims.

    Attributes:
        store: identity of its store.
        epoch: in which it leads.
        cycle: of its store when it began.
        empty: the store knew no revision when it began.
        host: for people.
        place: the state folder, by ``lock_place``.
    """

    store: str
    epoch: int
    cycle: int
    empty: bool
    host: str
    place: str


def lock_place(state: Path) -> str:
    """Lock the state folder for as long as this process lives, and return what identifies it.

    Who has the lock knows that no other controller of this folder lives, whatever git says.
    Empty: another process has it, or the folder can't be locked.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends
        found = os.fstat(descriptor)
    except OSError as error:
        log.warning("the state folder %s can't be locked: %s", state, error)
        return ""
    return f"{boot}:{found.st_dev}:{found.st_ino}"


def judge(record: lead_records.LeadRecord | None, led: LedBy, now: float) -> LeadVerdict:
    """Return what a record says of the store of a controller that begins."""
    if record is None:
        return LeadVerdict()
    if record.store == led.store:
        if record.cycle <= led.cycle:
            return LeadVerdict()
        return LeadVerdict(f"the store ends with cycle {led.cycle}, and git knows {record.cycle}")
    when = times.format_time(record.renewed_at)
    past = f"another store led last, on {record.host}, renewed {when}"
    # whoever may push can write any time: no lease is longer than ours, nor begins later
    until = min(record.until, record.renewed_at + LEASE_S)
    is_over = until <= now or record.renewed_at > now + LEASE_S
    if is_over or (record.place and record.place == led.place):
        return LeadVerdict(past)
    return LeadVerdict(
        past,
        f"the controller on {record.host} leads with another store until "
        f"{times.format_time(until)}, and longer if it is alive: stop one of the two",
    )


class LeadClaim:
    """The claim of one controller.

    Args:
        repository: of the cluster.
        led: who claims.
        cycle: returns how far the store is.
        tell: called with each new verdict.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        repository: source.GitSource,
        led: LedBy,
        *,
        cycle: Callable[[], int],
        tell: Callable[[LeadVerdict], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._repository = repository
        self._led = led
        self._cycle = cycle
        self._tell = tell
        self._clock = clock
        self._checked = self._blocked = False
        self._commit = ""
        self._due_at = 0.0
        self._failed = False

    def wait_s(self) -> float:
        """Return in how many seconds ``keep`` has something to do."""
        return max(0.0, self._due_at - self._clock())

    def begin(self, status: desired.SyncStatus) -> None:
        """Read the record once, before anything is in force, and tell what it says.

        Args:
            status: of the first revision.
        """
        if self._checked or status.sync == "Unknown":
            return
        try:
            record, self._commit = lead_records.read(self._repository)
            past = self._led.empty and record is None and notes.exist(self._repository)
        except (git_commands.GitError, OSError) as error:
            log.warning("can't read which store led last: %s", error)
            return
        verdict = judge(record, self._led, self._clock())
        if record is not None and record.store == self._led.store and verdict.past:
            # an old copy of the store that led: they must not be taken for one
            self._led = self._led._replace(store=uuid.uuid4().hex)
            verdict = judge(record, self._led, self._clock())._replace(past=verdict.past)
        if past:
            verdict = LeadVerdict("the store is empty, and the repository was run before")
        self._checked, self._blocked = True, bool(verdict.blocked)
        new = self._files_after(record, status.attempted_revision)
        self._tell(verdict._replace(store=self._led.store, new_files=new))

    def _files_after(
        self, record: lead_records.LeadRecord | None, head: str | None
    ) -> frozenset[str]:
        """Return the files that came after all that the last leader had in force."""
        if record is None or not record.revision or head is None:
            return frozenset()
        try:
            found = self._repository.differences(record.revision, head)
        except (git_commands.GitError, OSError) as error:
            log.warning("can't compare with what was in force before: %s", error)
            return frozenset()
        return frozenset(path for path, before, _ in found if before is None)

    def keep(self, status: desired.SyncStatus) -> None:
        """Renew the claim if that is due, or look if another leader has gone.

        Args:
            status: of the newest revision.
        """
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + LOOK_EVERY_S
        self.begin(status)
        if not self._checked:
            return
        try:
            if self._blocked:
                self._look_again()
            if not self._blocked:
                self._write(status.jobs_revision or "", self._clock() + LEASE_S)
                self._due_at = self._clock() + RENEW_EVERY_S
            self._failed = False
        except lead_records.OtherLeaderError:
            self._look_again()
        except (git_commands.GitError, OSError) as error:
            if not self._failed:
                log.warning("git does not know that this store leads: %s", error)
            self._failed = True

    def release(self, status: desired.SyncStatus) -> None:
        """Give the lease back, because the controller stops."""
        if self._checked and not self._blocked:
            try:
                self._write(status.jobs_revision or "", self._clock())
            except (git_commands.GitError, OSError) as error:
                log.warning("the lease in git is not given back and ends by itself: %s", error)

    def _look_again(self) -> None:
        """Read the record again, after somebody else has written it."""
        record, self._commit = lead_records.read(self._repository)
        verdict = judge(record, self._led._replace(cycle=self._cycle()), self._clock())
        blocked = bool(verdict.blocked)
        if blocked != self._blocked:
            self._blocked = blocked
            self._tell(verdict._replace(store=self._led.store))

    def _write(self, revision: str, until: float) -> None:
        led = self._led
        now = self._clock()
        record = lead_records.LeadRecord(
            led.store, led.epoch, self._cycle(), led.host, led.place, revision, now, until
        )
        self._commit = lead_records.write(self._repository, record, self._commit)
