"""Conversion of records to rows and back. Rows are tuples in the order of the table's columns."""

from typing import Any

import msgspec

from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, instance_records, records, scheduler_state
from reconciler.model.state.pending_reasons import Reason

Row = tuple[Any, ...]

encode = msgspec.msgpack.Encoder().encode


#: ``records.ElementNote`` in few bytes: its values in order, without their names.
_Note = msgspec.defstruct(
    "_Note",
    [(f.name, f.type, f.default) for f in msgspec.structs.fields(records.ElementNote)],
    frozen=True,
    array_like=True,
)

_decode_job = msgspec.msgpack.Decoder(records.JobRecord).decode
_decode_attempt = msgspec.msgpack.Decoder(records.AttemptRecord).decode
_decode_node = msgspec.msgpack.Decoder(records.NodeRecord).decode
#: Bytes in the body of each row of ``schema.REASONS`` with a reason that waiting does not end.
NEVER_MARK = encode("never")
_decode_reasons = msgspec.msgpack.Decoder(tuple[Reason, ...]).decode
_decode_drift = msgspec.msgpack.Decoder(drift_kinds.Drift).decode
_decode_remedy = msgspec.msgpack.Decoder(drift_kinds.DriftRemedy).decode
_decode_provision = msgspec.msgpack.Decoder(instance_records.Provision).decode
_decode_override = msgspec.msgpack.Decoder(records.Override).decode
_decode_scheduler_state = msgspec.msgpack.Decoder(scheduler_state.SchedulerState).decode
_decode_note = msgspec.msgpack.Decoder(_Note).decode


def labels_text(labels: dict[str, str]) -> str:
    """Return labels as lines between line ends, so that a search can match a whole line."""
    if not labels:
        return ""
    return "\n" + "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))


def job_row(job: records.JobRecord) -> Row:
    """Return a row of ``schema.JOBS``; notes have rows of their own."""
    spec = job.spec
    bare = msgspec.structs.replace(job, notes={}) if job.notes else job
    return (
        job.key,
        spec.name,
        spec.run,
        job.state.value,
        spec.queue,
        spec.owner,
        spec.priority,
        job.submitted_at,
        job.order,
        labels_text(spec.labels),
        1,
        encode(bare),
        job.ended_at,
        job.reason_key,
    )


def job(body: bytes, notes: dict[int, records.ElementNote] | None = None) -> records.JobRecord:
    """Return the record of a row of ``schema.JOBS``, with its notes if they are given."""
    record = _decode_job(body)
    return msgspec.structs.replace(record, notes=notes) if notes else record


def note_row(key: str, element: int, note: records.ElementNote) -> Row:
    """Return a row of ``schema.NOTES``."""
    return (key, element, encode(msgspec.structs.astuple(note)))


def note(body: bytes) -> records.ElementNote:
    """Return the note of a row of ``schema.NOTES``."""
    return records.ElementNote(*msgspec.structs.astuple(_decode_note(body)))


def attempt_row(attempt: records.AttemptRecord) -> Row:
    """Return a row of ``schema.ATTEMPTS``."""
    end = attempt.end_reason
    return (
        attempt.id,
        attempt.job,
        attempt.run,
        attempt.job_key,
        attempt.element,
        attempt.group,
        attempt.index,
        attempt.try_number,
        attempt.node,
        attempt.state.value,
        attempt.assigned_at,
        attempt.started_at,
        attempt.ended_at,
        attempt.exit_code,
        attempt.signal,
        None if end is None else end.value,
        int(attempt.concluded),
        encode(attempt),
    )


def attempt(body: bytes) -> records.AttemptRecord:
    """Return the record of a row of ``schema.ATTEMPTS``."""
    return _decode_attempt(body)


def node_row(node: records.NodeRecord) -> Row:
    """Return a row of ``schema.NODES``."""
    return (node.name, node.pool, node.state.value, encode(node))


def node(body: bytes) -> records.NodeRecord:
    """Return the record of a row of ``schema.NODES``."""
    return _decode_node(body)


def reasons(body: bytes) -> tuple[Reason, ...]:
    """Return the reasons of a row of ``schema.REASONS``."""
    return _decode_reasons(body)


def event_row(sequence: int, event: events.Event) -> Row:
    """Return a row of ``schema.EVENTS``."""
    return (sequence, event.at, event.kind, event.message, event.job, event.node, event.attempt)


def drift_row(found: drift_kinds.Drift) -> Row:
    """Return a row of ``schema.DRIFT``."""
    return (found.key, found.kind, found.subject, found.severity, encode(found))


def drift_of(body: bytes) -> drift_kinds.Drift:
    """Return the difference of a row of ``schema.DRIFT``."""
    return _decode_drift(body)


def provision(body: bytes) -> instance_records.Provision:
    """Return the record of a row of ``schema.PROVISIONS``."""
    return _decode_provision(body)


def override(body: bytes) -> records.Override:
    """Return the override of a row of ``schema.OVERRIDES``."""
    return _decode_override(body)


def remedy(body: bytes) -> drift_kinds.DriftRemedy:
    """Return the remediation of a row of ``schema.REMEDIES``."""
    return _decode_remedy(body)


def scheduler_state_of(body: bytes | None) -> scheduler_state.SchedulerState:
    """Return the scheduler's memory from its view; an empty one if there is none."""
    return scheduler_state.NOTHING if body is None else _decode_scheduler_state(body)
