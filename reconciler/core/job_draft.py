"""One job while a cycle works on it: a record that phases may change, and that knows if they did.

What comes in is the record as of the last cycle; what goes out is a new one, or that very object
where nothing changed, so that whoever keeps records sees by identity what is new.
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
#: How the message of a job that waits begins where it can't end by its deadline any more.
LATE = "its deadline can't be met "


class JobDraft:
    """One job while a cycle works on it; becomes a record again when the cycle ends."""

    __slots__ = (
        "base",
        "elements",
        "ended_at",
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
        self.message = record.message
        self.reason_key = record.reason_key
        self.is_new = False

    @property
    def finished(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self.state in states.FINISHED_JOB_STATES

    def note(self, element: int) -> records.ElementNote:
        """What the element has behind it."""
        return self.notes.get(element, _NO_NOTE)

    def set_note(self, element: int, note: records.ElementNote | None) -> None:
        """Replace or drop an element's note."""
        if self.notes is self.base.notes:
            self.notes = dict(self.base.notes)
        if note is None:
            self.notes.pop(element, None)
        else:
            self.notes[element] = note

    def set_element(self, element: int, state: JobState) -> None:
        """Change an element's state if the table allows it."""
        before = states.ELEMENT_CODES[self.elements[element]]
        states.check(f"job {self.spec.name} element {element}", before, state)
        self.elements[element] = ELEMENT_CODE[state]

    def live_count(self) -> int:
        """Elements that hold resources now."""
        return sum(self.elements.count(code) for code in LIVE_CODES)

    def record(self) -> records.JobRecord:
        """The renewed record; the old one where nothing changed."""
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
            message=self.message,
            reason_key=self.reason_key,
        )
        return base if renewed == base else renewed

    @property
    def changed(self) -> bool:
        """Whether the job is other than it was, or new."""
        return self.is_new or self.record() is not self.base
