"""Follows the repository: loads each revision, hands it to the loop, and says what became of it.

A thread of the controller. A new revision goes into the audit log, then to the loop, which is what
jobs wait for; notes in the repository and notices to people come after. What the loop could not
decide by is taken back: the audit log says what it was wrong about, and people are told only that.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from typing import NamedTuple

import msgspec

from reconciler import metrics
from reconciler.changes import notes
from reconciler.controller import loop_inbox
from reconciler.controller.quarantine import isolate_failures
from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import git_commands, source, watch
from reconciler.model import desired
from reconciler.notifications import delivery, messages
from reconciler.operations.audit import audit_entries, audit_log, retention

log = logging.getLogger("muster.controller")

#: The most problems of a revision that are logged.
PROBLEMS_LOGGED_MAX = 100
#: The most warnings of a revision that are kept with it: cycles, pages and the store carry them.
WARNINGS_MAX = 500
MORE_WARNINGS = "more-warnings"
#: The longest time without a look at the clock.
SLEEP_S_MAX = 600.0
#: The shortest time between two looks for what is due by the clock alone.
JUDGE_EVERY_S = 1.0
#: Notes wait for the loop's word, and so long for the work that the revision brought: writing them
#: takes several git processes, just when the machine starts what was committed.
NOTES_AFTER_S = 0.5
#: The most defects that a note tells of.
DEFECTS_NOTED_MAX = 10
#: The most notes and notices that wait; of more the oldest are left out.
NOTES_MAX = 1000
#: What notes in git are called among those who are told.
NOTES = "git notes"
#: The most entries of the audit log that may have to be taken back.
RECORDED_MAX = 100
#: How often it is looked whether a file of the audit log is over age: one goes at a time, so that a
#: clock that is ahead for a while does not cost all of them.
TIDY_EVERY_S = 3600.0
#: The most refusals of the loop that wait; only one of what was handed over last counts.
REFUSALS_MAX = 10


class _Recorded(NamedTuple):
    """What the audit log has been told of, and in which entry; None where it had it already."""

    value: desired.Desired
    number: int | None


class _Note(NamedTuple):
    """What is to be told of a revision in the repository, and which desired state it is about."""

    generation: int
    text: str


class GitWatcher(threading.Thread):
    """Loads revisions and hands them to the loop; looks again when told to, or after a while."""

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
        self._audit = audit
        self._notifier = notifier
        self._chained: audit_log.ChainEntry | None = None
        self._tidied_at = -TIDY_EVERY_S
        self._repository = repository
        self._loader = reading
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
        #: What tells of changes at once, where there is such a thing.
        self.watching: watch.LocalWatch | None = None
        self._due = False
        self._loaded_at = -JUDGE_EVERY_S
        self._stopping = False
        self._last: desired.Desired | None = None
        self._recorded: deque[_Recorded] = deque(maxlen=RECORDED_MAX)
        self._withdrawn: list[int] = []
        self._refusals: deque[isolate_failures.RevisionRefusal] = deque(maxlen=REFUSALS_MAX)

    def refuse(self, refusal: isolate_failures.RevisionRefusal) -> None:
        """The loop could not decide by what it was handed: take it back."""
        self._refusals.append(refusal)
        self.changed()

    def hint(self) -> None:
        """Somebody says that the repository may have changed: look soon."""
        self._polling.hint()
        self._look.set()

    def changed(self) -> None:
        """The repository has changed: look at once."""
        self._due = True
        self._look.set()

    def stop(self) -> None:
        """Leave after the load under way."""
        self._stopping = True
        self._look.set()

    def run(self) -> None:
        """Load, hand over, wait; until ``stop``."""
        while True:
            self._look.clear()
            if self._stopping:
                break
            if self._due or self._polling.next_poll_s() <= 0:
                self._due = False
                self._watch_again()
                try:
                    self._load()
                except Exception as defect:  # one look is lost, not the thread
                    log.exception("%s kept the repository from being read", isolate_failures.MARK)
                    self._fail(defect)
            elif self._has_news() and self._notes_left_s() <= 0:
                self._write_notes()
            else:
                left_s = min(self._polling.next_poll_s(), self._judge_again_s())
                self._look.wait(min(left_s, self._notes_left_s()) if self._has_news() else left_s)
        self._write_notes()
        self._loader.close()

    def _watch_again(self) -> None:
        """Watch the repository that is there now, before it is looked at; else it is polled."""
        if self.watching is not None:
            with contextlib.suppress(git_commands.GitError, OSError):
                self.watching.renew()

    def _judge_again_s(self) -> float:
        """How many seconds from now something that is held is to be judged again."""
        looked_s = time.monotonic() - self._loaded_at
        left_s = wait_s(self._loader.judge_again_at, time.time(), looked_s)
        self._due = self._due or left_s <= 0
        return left_s

    def _load(self) -> None:
        began = time.monotonic()
        self._take_back()
        self._polling.begin()
        value = bounded(self._loader.load())
        self._loaded_at = time.monotonic()
        self._polling.polled(reached=value.status.sync != "Unknown")
        took_s = time.monotonic() - began
        self._count(value.status, took_s)
        if _differs(value, self._last):
            self._record(value, took_s)
            _log_outcome(value.status)
            self._last = value
            packed = last_good.encode(self._loader.incumbents())
            self._inbox.put_desired(rooted(value, allowed=self._allow_root), packed)
            self._note(value)
            self._notify(value)
        self._tidy(value)

    def _take_back(self) -> None:
        """Undo what the loop could not decide by.

        Where something newer was handed over since, that is what counts: it passes, or is refused.
        """
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
            kept = [n for n, one in self._notes.items() if one.generation <= before.generation]
            self._notes = {name: self._notes[name] for name in kept}

    def _notify(self, value: desired.Desired) -> None:
        """Have those told outside who want to know what became of the revision.

        They are told with the notes, once the loop went by it.
        """
        notice = messages.of_status(value.status, time.time())
        if self._notifier is not None and notice is not None:
            self._later()
            self._notices.append((value, notice))

    def _record(self, value: desired.Desired, took_s: float) -> None:
        """Add what became of a revision to the audit log, once for each outcome."""
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
            log.warning("what became of %s is not in the audit log: %s", revision, error)
        self._recorded.append(_Recorded(value, number))

    def _tidy(self, value: desired.Desired) -> None:
        """Take a file of the audit log that is over age away, as what is in force says."""
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
            log.warning("nothing is dropped from the audit log: %s", error)
            return
        if told is not None:
            self._chained = told
            log.info("%s", told.entry.message)

    def _count(self, status: desired.SyncStatus, took_s: float) -> None:
        """Have the look counted; of a revision that is new, with the time of its commit."""
        revision, committed_at = status.attempted_revision, None
        if revision is not None and revision != self._counted and status.sync != "Unknown":
            self._counted = revision
            try:
                committed_at = self._repository.log.committed_at(revision)
            except (git_commands.GitError, OSError) as error:
                log.warning("the time of commit %s can't be read: %s", revision, error)
        self._inbox.put_look(
            metrics.RepositoryLook(metrics.LOOK_OF[status.sync], time.time(), took_s, committed_at)
        )

    def _fail(self, defect: Exception) -> None:
        """Go on by what is in force, look again later, and let everybody see it."""
        self._polling.polled(reached=False)
        self._inbox.put_look(
            metrics.RepositoryLook(metrics.LOOK_OF["Unknown"], time.time(), 0.0, defect=True)
        )
        last = self._last or desired.Desired()
        message = isolate_failures.unread(defect)
        status = msgspec.structs.replace(last.status, sync="Unknown", message=message)
        self._last = msgspec.structs.replace(last, status=status)
        self._inbox.put_desired(rooted(self._last, allowed=self._allow_root), None)

    def _note(self, value: desired.Desired) -> None:
        """Have what became of the revision told in the repository, once for each outcome."""
        status = value.status
        defects = [
            ": ".join(filter(None, (one.object, one.message)))
            for one in status.problems
            if one.rule == isolate_failures.RULE
        ][:DEFECTS_NOTED_MAX]
        told = (status.attempted_revision, status.sync, len(status.problems), *defects)
        if status.attempted_revision is None or status.sync == "Unknown" or told == self._told:
            return
        errors = sum(problem.severity == "error" for problem in status.problems)
        text = (
            f"muster: {status.sync} with {errors} errors; structure of "
            f"{(status.structure_revision or 'none')[:12]}, jobs of "
            f"{(status.jobs_revision or 'none')[:12]} in force"
        )
        text += "".join(f"; {one}" for one in defects)
        if self._chained is not None:
            text += f"; audit {self._chained.number} {self._chained.hash}"
        self._later()
        self._notes[status.attempted_revision] = _Note(value.generation, text)
        while len(self._notes) > NOTES_MAX:
            left_out = next(iter(self._notes))
            del self._notes[left_out]
            log.warning("the outcome of %s is not noted in git: too many wait", left_out)
        self._told = told

    def _later(self) -> None:
        """Notes and notices are due a while after the first of them."""
        if not (self._notes or self._notices):
            self._notes_at = time.monotonic() + NOTES_AFTER_S

    def _has_news(self) -> bool:
        """Whether there is something to tell of a desired state that the loop went by."""
        adopted = self._inbox.adopted
        return any(one.generation <= adopted for one in self._notes.values()) or any(
            value.generation <= adopted for value, _ in self._notices
        )

    def _notes_left_s(self) -> float:
        """How many seconds from now the notes that wait are due."""
        return self._notes_at - time.monotonic()

    def _write_notes(self) -> None:
        """Tell the notices and write the notes of what the loop went by; the others wait for its
        word. A note that can't be written is given up."""
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
                notes.write(self._repository, revision, note.text)
                why = ""
            except (git_commands.GitError, OSError) as error:
                log.warning("the outcome of %s is not noted in git: %s", revision, error)
                why = str(error)
            if self._notifier is not None:
                self._notifier.tried(NOTES, why)


def wait_s(again_at: float | None, now: float, looked_s: float) -> float:
    """How long to wait until something is judged again by the clock alone.

    What is due and stays so, whatever keeps it, is no reason to look without a pause.

    Args:
        again_at: when that is due, None: never.
        now: seconds since the epoch.
        looked_s: how long ago the last look was.
    """
    left_s = SLEEP_S_MAX if again_at is None else again_at - now
    return max(0.0, min(max(left_s, JUDGE_EVERY_S - looked_s), SLEEP_S_MAX))


def bounded(value: desired.Desired, most: int = WARNINGS_MAX) -> desired.Desired:
    """A revision with as many warnings as are kept; all errors are, as each refuses something."""
    problems = value.status.problems
    left = sum(one.severity == "warning" for one in problems) - most
    if left <= 0:
        return value
    kept, warnings = [], 0
    for one in problems:
        warnings += one.severity == "warning"
        if one.severity != "warning" or warnings <= most:
            kept.append(one)
    told = f"and {left} more warnings: `muster validate` in a clone tells them"
    kept.append(desired.Problem(MORE_WARNINGS, "warning", "", told))
    status = msgspec.structs.replace(value.status, problems=tuple(kept))
    return msgspec.structs.replace(value, status=status)


def rooted(value: desired.Desired, *, allowed: bool) -> desired.Desired:
    """Allow root in every pool where the controller was started so."""
    if not allowed:
        return value
    pools = {
        name: msgspec.structs.replace(pool, allow_root=True)
        for name, pool in value.structure.pools.items()
    }
    structure = msgspec.structs.replace(value.structure, pools=pools)
    return msgspec.structs.replace(value, structure=structure)


def _log_outcome(status: desired.SyncStatus) -> None:
    """Say once what became of a revision, and each problem on a line of its own."""
    fields = {"revision": status.attempted_revision or ""}
    level = logging.INFO if status.sync == "Synced" else logging.WARNING
    log.log(level, "git is %s: %s", status.sync, status.message or "in force", extra=fields)
    for problem in status.problems[:PROBLEMS_LOGGED_MAX]:
        log.warning("%s", problem.text(), extra={**fields, "path": problem.path})
    if (left := len(status.problems) - PROBLEMS_LOGGED_MAX) > 0:
        log.warning("and %d more problems: `muster status` tells them", left, extra=fields)


def _differs(value: desired.Desired, last: desired.Desired | None) -> bool:
    """Whether a load brought anything but another time of looking."""
    if last is None or value.generation != last.generation:
        return True
    status = msgspec.structs.replace(value.status, checked_at=last.status.checked_at)
    return status != last.status
