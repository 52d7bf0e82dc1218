"""Checksums of the parts of an outcome, by which a replay is compared with what was decided.

Prose is left out, so that a new version of Muster may word it anew: messages, and what reasons say
besides their codes and counts.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, outcome, pending_reasons, records

#: Values with a message for people.
Messaged = TypeVar("Messaged", records.AttemptRecord, events.Event, drift_kinds.DriftRemedy)

_encode = msgspec.msgpack.Encoder().encode


def _node_states(nodes: Iterable[records.NodeRecord]) -> list[tuple[str, str, str]]:
    # times and usage of nodes change with every report and decide nothing
    return [(node.name, node.state.value, node.boot_id) for node in nodes]


def _without_notes(jobs: Iterable[records.JobRecord]) -> list[records.JobRecord]:
    # notes are left out: an array may have ten thousand
    return [
        msgspec.structs.replace(job, notes={}, message="") if job.notes or job.message else job
        for job in jobs
    ]


def _without_messages(values: Iterable[Messaged]) -> list[Messaged]:
    return [msgspec.structs.replace(one, message="") if one.message else one for one in values]


def _codes(
    reasons: Mapping[str, tuple[pending_reasons.Reason, ...]],
) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return codes and counts of reasons, without the words that explain them."""
    return {
        key: [(one.code.value, tuple(step.count for step in one.funnel)) for one in each]
        for key, each in reasons.items()
    }


def _accepted(answers: Mapping[str, str]) -> dict[str, bool]:
    return {request: not refusal for request, refusal in answers.items()}


#: The parts of an outcome that are compared, by name.
PARTS = (
    "jobs",
    "attempts",
    "nodes",
    "runs",
    "reasons",
    "actions",
    "events",
    "drift",
    "remedies",
    "provisions",
    "overrides",
    "queues",
    "times",
)


def checksums(result: outcome.Outcome) -> tuple[int, ...]:
    """Return a checksum of each of ``PARTS`` of an outcome; 0 if it is empty."""
    parts: tuple[object, ...] = (
        _without_notes(result.jobs),
        _without_messages(result.attempts),
        (*_node_states(result.nodes), *result.left_nodes),
        (result.new_runs, result.left_jobs) if result.new_runs or result.left_jobs else (),
        _codes(result.reasons),
        result.actions,
        _without_messages(result.events),
        [msgspec.structs.replace(one, message="", remedy="") for one in result.drift],
        _without_messages(result.remedies),
        result.provisions,
        (result.overrides, _accepted(result.answers)) if result.overrides or result.answers else (),
        (result.queues, result.expected) if result.queues or result.expected else (),
        (
            *(
                result.now,
                result.desired_generation,
                result.nominations,
                result.schedule_inputs,
                result.next_order,
            ),
            *(result.wake_at, result.forget_at, result.scheduler_state),
        ),
    )
    return tuple(zlib.crc32(_encode(part)) if part else 0 for part in parts)
