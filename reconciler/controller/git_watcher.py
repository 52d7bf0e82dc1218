"""Follows the repository: loads each revision, hands it to the loop, and reports what became of it.

It is a thread of the controller. A new revision goes to the audit log, then to the loop; notes in
the repository and notices to people come later. A revision that the loop refuses is taken back: the
audit log says which entry was wrong, and people hear only the final result.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from typing import NamedTuple

import msgspec

from reconciler import metrics
from reconciler.controller import lead_claim, loop_inbox, notes_guard, unread_head
from reconciler.controller.quarantine import cycle_rescue, internal_errors
from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import git_commands, source, watch
from reconciler.model import desired
from reconciler.notifications import delivery, messages
from reconciler.operations.audit import audit_entries, audit_log, retention

log = logging.getLogger("muster.controller")

#: The most problems of a revision that are logged.
PROBLEMS_LOGGED_MAX = 100
#: The most warnings kept with a revision, because cycles, pages and the store carry them.
WARNINGS_MAX = 500
MORE_WARNINGS = "more-warnings"
#: The longest wait.
SLEEP_S_MAX = 600.0
#: The shortest time between two looks for something that is due by the clock alone.
JUDGE_EVERY_S = 1.0
#: How long notes wait after the loop applied a revision. Writing them takes several git processes,
#: just when the machine starts the new jobs.
NOTES_AFTER_S = 0.5
#: The most internal errors in a note.
DEFECTS_NOTED_MAX = 10
#: The most notes and notices that wait. The oldest are dropped first.
NOTES_MAX = 1000
#: Name of git notes among the channels of notices.
NOTES = "git notes"
#: The most audit entries that can be taken back.
RECORDED_MAX = 100
#: How often an expired file of the audit log is deleted. One goes at a time, so that a clock
#: that is ahead for a while does not cost all of them.
TIDY_EVERY_S = 3600.0
#: The most refusals that wait. Only one of the state handed over last counts.
REFUSALS_MAX = 10


class _Recorded(NamedTuple):
    """A desired state and the audit log's entry about it; None if the log had it already."""

    value: desired.Desired
    number: int | None


class _Note(NamedTuple):
    """A text about a revision to be noted in the repository, and the desired state it is about."""

    generation: int
    text: str


class GitWatcher(threading.Thread):
    """A loader of revisions. It looks at the repository when asked, and once in a while."""

    def __init__(
        self,
        repository: source.GitSource,
        reading: loader.Loader,
        inbox: loop_inbox.Inbox,
        polling: watch.Polling,
        *,
        allow_root: bool,
        audit: audit_log.Log | None = None,
        notifier: delivery.Notifier | None = None,
    ) -> None:
        super().__init__(name="repository", daemon=True)
        #: Tells git that this store leads; None: nobody is told.
        self.claim: lead_claim.LeadClaim | None = None
        self._audit = audit
        self._notifier = notifier
        self._chained: audit_log.ChainEntry | None = None
        self._tidied_at = -TIDY_EVERY_S
        self._repository = repository
        self._guard = notes_guard.NotesGuard(repository, self.changed)
        self._loader = reading
        self._unread = unread_head.UnreadHead(self._tell_unread)
        reading.on_head = self._unread.begin
        self._told: tuple[object, ...] = ()
        self._notes: dict[str, _Note] = {}
        self._notices: deque[tuple[desired.Desired, messages.Notice]] = deque(maxlen=NOTES_MAX)
        self._notes_at = 0.0
        self._counted: str | None = None
        self._inbox = inbox
        self._polling = polling
        self._allow_root = allow_root
        self._look = threading.Event()
        inbox.on_adopted = self._look.set
        #: Reports changes at once; None if the repository is polled.
        self.watching: watch.LocalWatch | None = None
        self._due = False
        self._loaded_at = -JUDGE_EVERY_S
        self._stopping = False
        self._last: desired.Desired | None = None
        self._recorded: deque[_Recorded] = deque(maxlen=RECORDED_MAX)
        self._withdrawn: list[int] = []
        self._refusals: deque[cycle_rescue.RevisionRefusal] = deque(maxlen=REFUSALS_MAX)

    def refuse(self, refusal: cycle_rescue.RevisionRefusal) -> None:
        """Take back a desired state that the loop could not apply."""
        self._refusals.append(refusal)
        self.changed()

    def hint(self) -> None:
        """Look soon, because the repository may have changed."""
        self._polling.hint()
        self._look.set()

    def changed(self) -> None:
        """Look at once, because the repository has changed."""
        self._due = True
        self._look.set()

    def stop(self) -> None:
        """End after the current load."""
        self._stopping = True
        self._look.set()

    def run(self) -> None:
        """Load, hand over and wait, until ``stop`` is called."""
        while True:
            self._look.clear()
            if self._stopping:
                break
            if self._due or self._polling.next_poll_s() <= 0:
                self._due = False
                self._watch_again()
                try:
                    self._load()
                except Exception as defect:  # only this look is lost
                    self._fail(defect)
            elif self._has_news() and self._notes_left_s() <= 0:
                self._write_notes()
            elif claim_left_s(self.claim, self._last) <= 0 and self.claim and self._last:
                self.claim.keep(self._last.status)
            else:
                waits = (
                    self._polling.next_poll_s(),
                    self._judge_again_s(),
                    claim_left_s(self.claim, self._last),
                )
                left_s = min(waits)
                self._look.wait(min(left_s, self._notes_left_s()) if self._has_news() else left_s)
        self._write_notes()
        if self.claim is not None and self._last is not None:
            self.claim.release(self._last.status)
        self._loader.close()

    def _watch_again(self) -> None:
        """Watch the repository that exists now. It is polled if that fails."""
        if self.watching is not None:
            with contextlib.suppress(git_commands.GitError, OSError):
                self.watching.renew()

    def _judge_again_s(self) -> float:
        """Return in how many seconds something held is to be judged again."""
        looked_s = time.monotonic() - self._loaded_at
        left_s = wait_s(self._loader.judge_again_at, time.time(), looked_s)
        self._due = self._due or left_s <= 0
        return left_s

    def _load(self) -> None:
        began = time.monotonic()
        self._take_back()
        self._polling.begin()
        try:
            value = self._guard.shown(limit_warnings(self._loader.load()))
        finally:
            self._unread.end()
        self._loaded_at = time.monotonic()
        value = looked(value, self._polling)
        took_s = time.monotonic() - began
        self._guard.look(is_reached=value.status.sync != "Unknown")
        self._count(value.status, took_s)
        if _differs(value, self._last):
            self._record(value, took_s)
            _log_outcome(value.status)
            if self._last is None and self.claim is not None:
                self.claim.begin(value.status)
            self._last = value
            packed = last_good.encode(self._loader.incumbents())
            self._inbox.put_desired(allow_root_everywhere(value, allowed=self._allow_root), packed)
            self._note(value)
            self._notify(value)
        elif value.status.next_look_at is not None:
            self._last = value
            self._inbox.put_desired(allow_root_everywhere(value, allowed=self._allow_root), None)
        self._tidy(value)

    def _tell_unread(self, head: str, seen_at: float) -> None:
        """Show that a head is not read yet. Called while the loader reads, in another thread."""
        self._last = unread_head.described(self._last or desired.Desired(), head, seen_at)
        self._inbox.put_desired(allow_root_everywhere(self._last, allowed=self._allow_root), None)

    def _take_back(self) -> None:
        """Undo what the loop could not apply, if nothing newer was handed over since."""
        while self._refusals:
            refusal = self._refusals.popleft()
            if self._last is None or self._last.generation != refusal.generation:
                continue
            packed = refusal.incumbents
            before = last_good.decode(packed) if packed else last_good.LastGood()
            if refusal.jobs:
                self._loader.leave(before, refusal.jobs)
            else:
                self._loader.go_back(before, refusal.problem)
            self._last = None  # a refusal of it that is still to come counts no more
            while self._recorded and self._recorded[-1].value.generation > before.generation:
                number = self._recorded.pop().number
                self._withdrawn += [number] if number is not None else []
            for waiting in [one for one in self._notices if one[0].generation > before.generation]:
                self._notices.remove(waiting)
            for revision, note in list(self._notes.items()):
                if note.generation > before.generation:
                    del self._notes[revision]

    def _notify(self, value: desired.Desired) -> None:
        """Queue a notice to people about a revision, for the time when the loop applied it."""
        notice = messages.of_status(value.status, time.time())
        if self._notifier is not None and notice is not None:
            self._later()
            self._notices.append((value, notice))

    def _record(self, value: desired.Desired, took_s: float) -> None:
        """Add the result of a revision to the audit log, once for each result."""
        if self._audit is None or value.status.sync == "Unknown":
            self._recorded.append(_Recorded(value, None))
            return
        known = [one.value for one in self._recorded if one.value.generation]
        before, number = known[-1] if known else None, None
        try:
            last = self._audit.newest_revision()
            entry = audit_entries.entry_of(
                value.status,
                self._loader.line,
                signers=self._loader.signers,
                before=audit_entries.NOTHING if before is None and last is None else before,
                after=value,
                at=time.time(),
                duration_s=took_s,
            )
            if self._withdrawn:
                entry = audit_entries.withdrawing(entry, self._withdrawn)
            if audit_entries.is_news(entry, last.entry if last else None):
                keep_s = value.structure.settings.retain_audit_s
                self._chained = self._audit.append(entry, part_s=retention.part_s(keep_s))
                number = self._chained.number
            self._withdrawn = []
        except (OSError, ValueError) as error:
            revision = value.status.attempted_revision
            log.warning("the result of %s is not in the audit log: %s", revision, error)
        self._recorded.append(_Recorded(value, number))

    def _tidy(self, value: desired.Desired) -> None:
        """Delete an expired file of the audit log, if the settings in force say so."""
        keep_s = value.structure.settings.retain_audit_s
        if self._audit is None or keep_s is None or value.status.sync == "Unknown":
            return
        if time.monotonic() < self._tidied_at + TIDY_EVERY_S:
            return
        self._tidied_at = time.monotonic()
        revision = value.status.structure_revision or ""
        try:
            told = retention.drop(self._audit, keep_s=keep_s, now=time.time(), revision=revision)
        except (OSError, ValueError) as error:
            log.warning("no expired file of the audit log was deleted: %s", error)
            return
        if told is not None:
            self._chained = told
            log.info("%s", told.entry.message)

    def _count(self, status: desired.SyncStatus, took_s: float) -> None:
        """Count a look at the repository, with the time of the commit if it is new."""
        revision, committed_at = status.attempted_revision, None
        if revision is not None and revision != self._counted and status.sync != "Unknown":
            self._counted = revision
            try:
                committed_at = self._repository.log.committed_at(revision)
            except (git_commands.GitError, OSError) as error:
                log.warning("the time of commit %s can't be read: %s", revision, error)
        self._inbox.put_look(
            metrics.RepositoryLook(
                *(metrics.LOOK_OF[status.sync], time.time(), took_s, committed_at),
                notes_lost=self._guard.take_losses(),
                lead_records_lost=self.claim.take_restored() if self.claim is not None else 0,
            )
        )

    def _fail(self, defect: Exception) -> None:
        """Keep what is in force, show the internal error, and look again later."""
        message = "%s prevented the repository from being read"
        log.error(message, internal_errors.MARK, exc_info=defect)
        look = metrics.RepositoryLook(metrics.LOOK_OF["Unknown"], time.time(), 0.0, defect=True)
        self._inbox.put_look(look)
        self._last = looked(unread(self._last or desired.Desired(), defect), self._polling)
        self._inbox.put_desired(allow_root_everywhere(self._last, allowed=self._allow_root), None)

    def _note(self, value: desired.Desired) -> None:
        """Queue a note about a revision's result, once for each result, if this store leads."""
        status = value.status
        noted = noted_defects(status)
        result = (status.attempted_revision, status.sync, len(status.problems), *noted)
        if result == self._told or is_silent(status, self.claim):
            return
        text = note_text(status, noted, self._chained)
        self._later()
        self._notes[status.attempted_revision or ""] = _Note(value.generation, text)
        while len(self._notes) > NOTES_MAX:
            left_out = next(iter(self._notes))
            del self._notes[left_out]
            log.warning("the result of %s is not noted in git: too many notes wait", left_out)
        self._told = result

    def _later(self) -> None:
        """Make notes and notices due a while after the first of them."""
        if not (self._notes or self._notices):
            self._notes_at = time.monotonic() + NOTES_AFTER_S

    def _has_news(self) -> bool:
        """Return True if there are notes or notices about a state that the loop applied."""
        found = [note.generation for note in self._notes.values()]
        found += [value.generation for value, _ in self._notices]
        return any(generation <= self._inbox.adopted for generation in found)

    def _notes_left_s(self) -> float:
        """Return in how many seconds the notes are due."""
        return self._notes_at - time.monotonic()

    def _write_notes(self) -> None:
        """Send the notices and write the notes of what the loop applied; the others wait.

        A note that can't be written is given up.
        """
        adopted = self._inbox.adopted
        for _ in range(len(self._notices)):
            value, notice = self._notices.popleft()
            if value.generation > adopted:
                self._notices.append((value, notice))
            elif self._notifier is not None:
                self._notifier.tell([notice], value.structure.settings.notifications)
        for revision, note in list(self._notes.items()):
            if note.generation > adopted:
                continue
            del self._notes[revision]
            try:
                self._guard.write(revision, note.text)
                why = ""
            except (git_commands.GitError, OSError) as error:
                log.warning("the result of %s is not noted in git: %s", revision, error)
                why = str(error)
            if self._notifier is not None:
                self._notifier.tried(NOTES, why)


def claim_left_s(claim: lead_claim.LeadClaim | None, last: desired.Desired | None) -> float:
    """Return in how many seconds git is to be told again that this store leads."""
    return SLEEP_S_MAX if claim is None or last is None else claim.wait_s()


def looked(value: desired.Desired, polling: watch.Polling) -> desired.Desired:
    """Note that a look is over; return its result, with the time of the next one if it failed."""
    reached = value.status.sync != "Unknown"
    polling.polled(reached=reached)
    if reached:
        return value
    next_look_at = time.time() + polling.next_poll_s()
    status = msgspec.structs.replace(value.status, next_look_at=next_look_at)
    return msgspec.structs.replace(value, status=status)


def unread(last: desired.Desired, defect: Exception) -> desired.Desired:
    """Return what is in force, with the internal error that kept git from being read."""
    shown = internal_errors.describe_unread(defect)
    status = msgspec.structs.replace(last.status, sync="Unknown", message=shown)
    return msgspec.structs.replace(last, status=status)


def noted_defects(status: desired.SyncStatus) -> list[str]:
    """Return the internal errors that a note names."""
    return [
        ": ".join(filter(None, (problem.object, problem.message)))
        for problem in status.problems
        if problem.rule == internal_errors.RULE
    ][:DEFECTS_NOTED_MAX]


def is_silent(status: desired.SyncStatus, claim: lead_claim.LeadClaim | None) -> bool:
    """Return True if nothing is known that a note could tell, or another controller tells it."""
    is_unknown = status.attempted_revision is None or status.sync == "Unknown"
    return is_unknown or (claim is not None and not claim.leads)


def note_text(
    status: desired.SyncStatus, noted: list[str], chained: audit_log.ChainEntry | None
) -> str:
    """Return the note about a result, with internal errors and the newest hash of the audit log."""
    errors = sum(problem.severity == "error" for problem in status.problems)
    text = (
        f"muster: {status.sync} with {errors} errors; structure of "
        f"{(status.structure_revision or 'none')[:12]}, jobs of "
        f"{(status.jobs_revision or 'none')[:12]} in force"
    )
    text += "".join(f"; {note}" for note in noted)
    return text if chained is None else f"{text}; audit {chained.number} {chained.hash}"


def wait_s(again_at: float | None, now: float, looked_s: float) -> float:
    """Return how many seconds to wait until something is judged again by the clock alone.

    Something that stays due is no reason to look without a pause.

    Args:
        again_at: when that is due; None: never.
        now: seconds since the epoch.
        looked_s: how long ago the last look was.
    """
    left_s = SLEEP_S_MAX if again_at is None else again_at - now
    return max(0.0, min(max(left_s, JUDGE_EVERY_S - looked_s), SLEEP_S_MAX))


def limit_warnings(value: desired.Desired, most: int = WARNINGS_MAX) -> desired.Desired:
    """Return a revision with at most ``WARNINGS_MAX`` warnings. All errors stay."""
    problems = value.status.problems
    left = sum(problem.severity == "warning" for problem in problems) - most
    if left <= 0:
        return value
    shown, warnings = [], 0
    for problem in problems:
        warnings += problem.severity == "warning"
        if problem.severity != "warning" or warnings <= most:
            shown.append(problem)
    note = f"and {left} more warnings: `muster validate` in a clone lists them"
    shown.append(desired.Problem(MORE_WARNINGS, "warning", "", note))
    status = msgspec.structs.replace(value.status, problems=tuple(shown))
    return msgspec.structs.replace(value, status=status)


def allow_root_everywhere(value: desired.Desired, *, allowed: bool) -> desired.Desired:
    """Let every pool run tasks as root, also of owners without a Unix user, by ``--allow-root``."""
    if not allowed:
        return value
    pools = {
        name: msgspec.structs.replace(pool, allow_root=True, runs_unmapped=True)
        for name, pool in value.structure.pools.items()
    }
    structure = msgspec.structs.replace(value.structure, pools=pools)
    return msgspec.structs.replace(value, structure=structure)


def _log_outcome(status: desired.SyncStatus) -> None:
    """Log the result of a revision, and each problem on a line of its own."""
    fields = {"revision": status.attempted_revision or ""}
    level = logging.INFO if status.sync == "Synced" else logging.WARNING
    log.log(level, "git is %s: %s", status.sync, status.message or "read and checked", extra=fields)
    for problem in status.problems[:PROBLEMS_LOGGED_MAX]:
        log.warning("%s", problem.text(), extra={**fields, "path": problem.path})
    if (left := len(status.problems) - PROBLEMS_LOGGED_MAX) > 0:
        log.warning("and %d more problems; `muster status` shows them", left, extra=fields)


def _differs(value: desired.Desired, last: desired.Desired | None) -> bool:
    """Return True if a load brought more than another time of looking."""
    if last is None or value.generation != last.generation:
        return True
    before = last.status
    return before != msgspec.structs.replace(
        value.status, checked_at=before.checked_at, next_look_at=before.next_look_at
    )
