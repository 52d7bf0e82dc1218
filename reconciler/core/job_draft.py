"""A job while a cycle works on it: a record that phases change.

The result is a new record, or the very same object if nothing changed: readers tell by identity
what is new.
"""

import msgspec

from reconciler.model.state import records, states
from reconciler.model.state.states import ELEMENT_CODE, JobState

PENDING = ELEMENT_CODE[JobState.PENDING]
STARTING = ELEMENT_CODE[JobState.STARTING]
RUNNING = ELEMENT_CODE[JobState.RUNNING]
#: Codes of elements that hold resources now.
LIVE_CODES = (STARTING, RUNNING)
_NO_NOTE = records.ElementNote()
#: Beginning of the message of a pending job that can't meet its deadline.
LATE = "its deadline can't be met "
#: Beginning of a message about elements that were cancelled.
OF_ELEMENTS = ("element ", "elements ")


class JobDraft:
    """One job while a cycle works on it. It becomes a record when the cycle ends."""

    __slots__ = (
        "base",
        "declared_over",
        "described",
        "elements",
        "ended_at",
        "ephemeral",
        "is_new",
        "message",
        "notes",
        "reason_key",
        "removed",
        "spec",
        "started_at",
        "state",
        "submitted_at",
    )

    def __init__(self, record: records.JobRecord) -> None:
        self.base = record
        self.spec = record.spec
        self.state = record.state
        self.elements = bytearray(record.elements)
        self.notes = record.notes
        self.submitted_at = record.submitted_at
        self.started_at = record.started_at
        self.ended_at = record.ended_at
        self.removed = record.removed
        self.declared_over = record.declared_over
        self.ephemeral = record.ephemeral
        self.described = record.described
        self.message = record.message
        self.reason_key = record.reason_key
        self.is_new = False

    @property
    def finished(self) -> bool:
        """True if nothing more can happen to the job."""
        return self.state in states.FINISHED_JOB_STATES

    def note(self, element: int) -> records.ElementNote:
        """Return the history of an element."""
        return self.notes.get(element, _NO_NOTE)

    def set_note(self, element: int, note: records.ElementNote | None) -> None:
        """Replace or drop an element's history."""
        if self.notes is self.base.notes:
            self.notes = dict(self.base.notes)
        if note is None:
            self.notes.pop(element, None)
        else:
            self.notes[element] = note

    def set_element(self, element: int, state: JobState) -> None:
        """Change an element's state if the table of states allows it."""
        before = states.ELEMENT_CODES[self.elements[element]]
        states.check(f"job {self.spec.name} element {element}", before, state)
        self.elements[element] = ELEMENT_CODE[state]

    def live_count(self) -> int:
        """Return the number of elements that hold resources now."""
        return sum(self.elements.count(code) for code in LIVE_CODES)

    def record(self) -> records.JobRecord:
        """Return the renewed record, or the old one if nothing changed."""
        base = self.base
        if (
            self.state is base.state
            and self.spec is base.spec
            and self.notes is base.notes
            and self.elements == base.elements
            and self.submitted_at == base.submitted_at
            and self.started_at == base.started_at
            and self.ended_at == base.ended_at
            and self.removed is base.removed
            and self.declared_over is base.declared_over
            and self.ephemeral is base.ephemeral
            and self.described == base.described
            and self.message == base.message
            and self.reason_key == base.reason_key
        ):
            return base
        renewed = msgspec.structs.replace(
            base,
            spec=self.spec,
            state=self.state,
            elements=bytes(self.elements),
            notes=self.notes,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            removed=self.removed,
            declared_over=self.declared_over,
            ephemeral=self.ephemeral,
            described=self.described,
            message=self.message,
            reason_key=self.reason_key,
        )
        return base if renewed == base else renewed

    @property
    def changed(self) -> bool:
        """True if the job is new or changed."""
        return self.is_new or self.record() is not self.base
