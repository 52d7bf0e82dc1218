"""A controller's claim to lead a cluster, renewed in git, and what another's record there means.

Called by the thread that follows the repository. A store that is not the one that led last, or is
behind it, may not know what runs: its controller asks first (``adoption``). While another store's
lease lasts, it leads nothing at all. While its own lasts (``kept_lease``), no other controller can
have replaced its record: whoever did was none, so that it leads on, and writes its record again.
"""

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from reconciler import lock_file
from reconciler.changes import lead_records
from reconciler.controller import ephemeral_runs
from reconciler.controller.host import kept_lease
from reconciler.desired.git import git_commands
from reconciler.model import desired
from reconciler.model.state import adoption_state
from reconciler.model.values import times

log = logging.getLogger("muster.controller")

#: How long nobody else may lead after the record was renewed, and how often it is.
LEASE_S = 300.0
RENEW_EVERY_S = LEASE_S / 3
#: By how much the clocks of two machines may differ: a lease of another machine that is not given
#: back counts as over only so much later.
CLOCKS_S = 60.0
#: How often the record of another leader is read again, and a failed write is tried again.
LOOK_EVERY_S = 10.0
#: How many records are remembered that may be in git although writing them failed.
_OWN_MAX = 8
#: The file of the state folder that a controller has locked as long as it lives.
LOCK = "lead.lock"


class LeadVerdict(NamedTuple):
    """A judgement of a store by the record in git.

    Attributes:
        past: why the store may not know all that was run; empty: it does.
        blocked: why nothing may be led now; empty: it may.
        store: identity of the store from now on.
        new_files: files that came after all that the last leader had in force.
        above: the epoch in which another store was led: agents refuse lower ones.
        ephemeral: what git has noted of runs without a file there.
    """

    past: str = ""
    blocked: str = ""
    store: str = ""
    new_files: frozenset[str] = frozenset()
    above: int = 0
    ephemeral: tuple[adoption_state.EphemeralRun, ...] = ()


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
    """Lock a file of the state folder for as long as this process lives.

    Who has the lock knows that no other controller of this folder lives, whatever git says.

    Returns:
        What identifies the folder; empty: another process has the lock, or there can be none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        descriptor = lock_file.open_file(state / LOCK)
        lock_file.lock(descriptor)  # held until the process ends
        found = state.stat()
    except lock_file.LockHeldError as error:
        log.warning("the state folder %s can't be locked: %s has locked it", state, error)
        return ""
    except OSError as error:
        log.warning("the state folder %s can't be locked: %s", state, error)
        return ""
    return f"{boot}:{found.st_dev}:{found.st_ino}"


def judge(
    record: lead_records.LeadRecord | None, led: LedBy, now: float, seen_s: float = 0.0
) -> LeadVerdict:
    """Return what a record says of the store of a controller without a lease.

    Args:
        record: as git has it.
        led: who asks.
        now: seconds since the epoch.
        seen_s: for how long the record was seen unchanged.
    """
    if record is None:
        return LeadVerdict()
    if record.store == led.store and record.cycle > led.cycle:
        return LeadVerdict(f"the store ends with cycle {led.cycle}, and git knows {record.cycle}")
    when = times.format_time(record.renewed_at)
    past = f"another store led last, on {record.host}, renewed {when}"
    # whoever may push can write any time: no lease is longer than ours, whatever its clock says
    until = min(record.until, record.renewed_at + LEASE_S)
    left_s = min(until + CLOCKS_S - now, LEASE_S - seen_s)
    is_given_back = record.until <= record.renewed_at
    is_here = bool(record.place) and record.place == led.place
    if record.store == led.store:
        # a disk can be copied with the store: the machine that it was copied from may go on
        is_elsewhere = bool(record.place) and not is_here and record.host != led.host
        is_copy = is_elsewhere and not is_given_back and left_s > 0
        return LeadVerdict(f"{record.host} leads with this store, {when}" if is_copy else "")
    if is_given_back or left_s <= 0 or is_here:
        return LeadVerdict(past)
    return LeadVerdict(
        past,
        f"the controller on {record.host} leads with another store until "
        f"{times.format_time(now + left_s)}, and longer if it is alive: stop one of the two",
    )


class LeadPlace(Protocol):
    """A place where the record is; see ``lead_records.RecordPlace``."""

    @property
    def name(self) -> str:
        """The place, for people."""

    def read(self) -> tuple[lead_records.LeadRecord | None, str]:
        """Return the record and the commit that holds it."""

    def write(self, record: lead_records.LeadRecord, before: str | None) -> str:
        """Replace the record, and return the commit that holds it."""

    def was_run(self) -> bool:
        """Return True if the cluster was run before."""

    def added_since(self, revision: str, head: str, until: float | None) -> frozenset[str]:
        """Return the files that came after all that may have been in force until then."""


class LeadClaim:
    """The claim of one controller.

    Args:
        place: of the record.
        led: who claims.
        lease: its own, as its machine knows it.
        cycle: returns how far the store is.
        tell: called with each new verdict.
        clock: seconds since the epoch.
        noted: the runs without a file in git, noted there by who leads; None: nobody notes them.
    """

    def __init__(
        self,
        place: LeadPlace,
        led: LedBy,
        lease: kept_lease.KeptLease,
        *,
        cycle: Callable[[], int],
        tell: Callable[[LeadVerdict], None],
        clock: Callable[[], float] = time.time,
        noted: ephemeral_runs.EphemeralRuns | None = None,
    ) -> None:
        self._runs = noted
        self._place = place
        self._led = led
        self._lease = lease
        self._cycle = cycle
        self._tell = tell
        self._clock = clock
        self._checked = self._blocked = False
        self._commit = ""
        self._due_at = 0.0
        self._failed = False
        #: The commit that was read last, and when it was first seen, by the lease's clock.
        self._seen = ("", 0.0)
        #: The records of this process that may be in git.
        self._own: deque[lead_records.LeadRecord] = deque(maxlen=_OWN_MAX)
        self._restored = 0

    def take_restored(self) -> int:
        """Return how often the record was written again since the last call."""
        found, self._restored = self._restored, 0
        return found

    def wait_s(self) -> float:
        """Return in how many seconds ``keep`` has something to do."""
        left_s = max(0.0, self._due_at - self._lease.clock())
        return self._runs.wait_s(left_s) if self._runs is not None and self.leads else left_s

    def begin(self, status: desired.SyncStatus) -> None:
        """Read the record once, before anything is in force, and tell what it says.

        Args:
            status: of the first revision.
        """
        if self._checked or status.sync == "Unknown":
            return
        try:
            record = self._read()
            past = self._led.empty and record is None and self._was_run()
        except (git_commands.GitError, OSError) as error:
            log.warning("can't read which store led last: %s", error)
            return
        self._follow(record)
        verdict = judge(record, self._led, self._clock(), self._seen_s())
        if record is not None and record.store == self._led.store and verdict.past:
            # a copy of the store that led: they must not be taken for one
            self._led = self._led._replace(store=uuid.uuid4().hex)
            verdict = judge(record, self._led, self._clock())._replace(past=verdict.past)
        if past:
            verdict = LeadVerdict("the store is empty, and the repository was run before")
        self._checked, self._blocked = True, bool(verdict.blocked)
        self._say(verdict, record, status)

    def _say(
        self,
        verdict: LeadVerdict,
        record: lead_records.LeadRecord | None,
        status: desired.SyncStatus,
    ) -> None:
        """Tell a verdict, with what it says for this store and the newest revision."""
        head = status.attempted_revision
        new = frozenset() if verdict.blocked else self._files_after(record, head)
        above = record.epoch if record is not None and record.store != self._led.store else 0
        self._tell(
            verdict._replace(
                store=self._led.store, new_files=new, above=above, ephemeral=self._noted()
            )
        )

    @property
    def leads(self) -> bool:
        """True if git was asked, and no other controller leads."""
        return self._checked and not self._blocked

    def _noted(self) -> tuple[adoption_state.EphemeralRun, ...]:
        """Return what git has noted of runs without a file there; none if it can't be read."""
        try:
            return self._runs.read() if self._runs is not None else ()
        except (git_commands.GitError, OSError) as error:
            log.warning("can't read which jobs without a file in git ran: %s", error)
            return ()

    def _follow(self, record: lead_records.LeadRecord | None) -> None:
        """Lead in an epoch above that of another leader, who may have started again meanwhile."""
        if record is not None and record.store != self._led.store:
            epoch = max(self._led.epoch, record.epoch + 1)
            self._led = self._led._replace(epoch=epoch)

    def _was_run(self) -> bool:
        """Return True if the repository was run before, although no record can be read."""
        return bool(self._commit) or self._place.was_run()

    def _files_after(
        self, record: lead_records.LeadRecord | None, head: str | None
    ) -> frozenset[str]:
        """Return the files that came after all that the last leader may have had in force.

        One that has given its lease back has said what that was. Another one may have applied what
        came between its last renewal and its end, which nobody has seen.
        """
        if record is None or not record.revision or head is None:
            return frozenset()
        is_given_back = record.until <= record.renewed_at
        until = None if is_given_back else record.renewed_at + LEASE_S + CLOCKS_S
        try:
            return self._place.added_since(record.revision, head, until)
        except (git_commands.GitError, OSError) as error:
            log.warning("can't compare with what was in force before: %s", error)
            return frozenset()

    def keep(self, status: desired.SyncStatus) -> None:
        """Renew the claim if that is due, or look if another leader has gone.

        Args:
            status: of the newest revision.
        """
        if self._runs is not None and self.leads:
            self._runs.write_if_due()
        if self._lease.clock() < self._due_at:
            return
        self._due_at = self._lease.clock() + LOOK_EVERY_S
        self.begin(status)
        if not self._checked:
            return
        try:
            if self._blocked:
                self._look_again(status)
            if not self._blocked:
                self._renew(status)
            self._failed = False
        except (git_commands.GitError, OSError) as error:
            if not self._failed:
                log.warning("git does not know that this store leads: %s", error)
            self._failed = True

    def release(self, status: desired.SyncStatus) -> None:
        """Give the lease back, because the controller stops."""
        if self.leads:
            if self._runs is not None:
                self._runs.write()
            try:
                self._write(status.jobs_revision or "", 0.0)
                self._lease.end()
            except (git_commands.GitError, OSError) as error:
                log.warning("the lease in git is not given back and ends by itself: %s", error)

    def _read(self) -> lead_records.LeadRecord | None:
        """Return the record that counts: that of git, or the own one while its lease runs.

        One that can't be read counts for as long as another leader's would, and then as none: a
        leader that is alive has written its own again by then.

        Raises:
            GitError: it can't be read.
        """
        own = self._lease.record
        try:
            record, commit = self._place.read()
            self._see(commit)
        except lead_records.UnreadableRecordError as error:
            record, commit = None, error.commit
            self._see(commit)
            if own is None and self._seen_s() < LEASE_S:
                raise
        self._commit = commit
        if own is None:
            return record
        # a controller that was killed may have written a newer one of its own
        if record is None or (record.store, record.epoch) != (own.store, own.epoch):
            self._note_replaced(record)
        return own

    def _see(self, commit: str) -> None:
        if commit != self._seen[0]:
            self._seen = (commit, self._lease.clock())

    def _seen_s(self) -> float:
        """Return for how long the record was seen unchanged."""
        return self._lease.clock() - self._seen[1]

    def _look_again(self, status: desired.SyncStatus) -> None:
        """Read the record again, after somebody else has written it.

        Once the other's lease is over, the record is replaced before anything is led, so that of
        two that wait only one does.
        """
        record = self._read()
        self._follow(record)
        led = self._led._replace(cycle=self._cycle())
        verdict = judge(record, led, self._clock(), self._seen_s())
        if self._blocked and not verdict.blocked:
            try:
                self._write(status.jobs_revision or "", LEASE_S)
            except lead_records.OtherLeaderError:
                return  # it still waits
        blocked = bool(verdict.blocked)
        if blocked != self._blocked:
            self._blocked = blocked
            self._say(verdict, record, status)

    def _renew(self, status: desired.SyncStatus) -> None:
        """Write the record, also over another one if the own lease runs."""
        revision = status.jobs_revision or ""
        try:
            self._write(revision, LEASE_S)
        except lead_records.OtherLeaderError:
            if self._lease.record is None:
                self._look_again(status)
                return
            self._note_found()
            # within the lease nobody else may write, so that nobody can win a race against this
            ends_before = self._lease.left_s() > git_commands.REMOTE_TIMEOUT_S
            self._write(revision, LEASE_S, replaces_all=ends_before)
        self._due_at = self._lease.clock() + RENEW_EVERY_S

    def _note_found(self) -> None:
        """Note what has replaced the record, without depending on that."""
        try:
            record, self._commit = self._place.read()
        except lead_records.UnreadableRecordError as error:
            record, self._commit = None, error.commit
        if record is None or record not in self._own:
            self._note_replaced(record)

    def _note_replaced(self, record: lead_records.LeadRecord | None) -> None:
        """Count and log that somebody who is no controller has replaced or removed the record."""
        self._restored += 1
        if record is not None:
            found = f"the record of a store {record.store[:64]!a} on {record.host[:64]!a}"
        else:
            found = "no record of a leader" if self._commit else "nothing"
        log.warning(
            "%s holds %s (commit %s) while the lease of this controller runs, so it is not from a "
            "controller: this one leads on, and writes its record again. To fix: let nobody but "
            "the controller push that reference",
            *(self._place.name, found, self._commit or "none"),
        )

    def _write(self, revision: str, lease_s: float, *, replaces_all: bool = False) -> None:
        """Write the record with a lease from now on; 0: it is given back."""
        led, began_at, now = self._led, self._lease.clock(), self._clock()
        record = lead_records.LeadRecord(
            *(led.store, led.epoch, self._cycle(), led.host, led.place, revision),
            *(now, now + lease_s),
        )
        self._own.append(record)
        before = None if replaces_all else self._commit
        self._commit = self._place.write(record, before)
        self._lease.renew(began_at + lease_s, record)
