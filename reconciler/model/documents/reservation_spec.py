"""``Reservation``: nodes kept for some jobs, or for nobody, in a window of time."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import (
    AmountsSpec,
    DocumentPart,
    Duration,
    Metadata,
    Name,
    doc,
)
from reconciler.model.documents.job_spec import Timestamp


class ReservationSpec(DocumentPart, frozen=True):
    """Nodes, times and users of a reservation."""

    hosts: Annotated[
        Annotated[str, msgspec.Meta(min_length=1)] | None,
        doc("The nodes, as a host list.", example="gpu[001-004]"),
    ] = None
    pools: Annotated[list[Name], doc("All nodes of these pools.", example=["h200"])] = []
    amounts: Annotated[
        AmountsSpec,
        doc(
            "Amount that is kept: as many whole nodes as have all of it together. Default: "
            "all of them.",
            example={"gpu": 16},
        ),
    ] = AmountsSpec()
    start: Annotated[
        Timestamp | None,
        doc("Start (RFC 3339).", example="2027-01-31T06:00:00Z"),
    ] = None
    end: Annotated[Timestamp | None, doc("End (RFC 3339).", example="2027-01-31T18:00:00Z")] = None
    schedule: Annotated[
        Annotated[str, msgspec.Meta(max_length=200)] | None,
        doc(
            "Start of each window, instead of `start`: minute, hour, day of month, month, "
            "day of week as in cron, in UTC.",
            example="0 6 * * 1",
        ),
    ] = None
    duration: Annotated[
        Duration | None,
        doc("Duration of each window, instead of `end`.", example="12h", unit="duration"),
    ] = None
    users: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1)]],
        doc(
            "Owners whose jobs may use it. If neither users nor queues are given, any job "
            "may use it that names it in `reservation`.",
            example=["alice@example.org"],
        ),
    ] = []
    queues: Annotated[list[Name], doc("Queues whose jobs may use it.", example=["course"])] = []
    maintenance: Annotated[
        bool, doc("Maintenance: nothing runs there then, whoever asks.", example=True)
    ] = False


class ReservationDocument(DocumentPart, frozen=True, tag_field="kind", tag="Reservation"):
    """Nodes kept for a window of time."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "firmware"})]
    spec: Annotated[
        ReservationSpec,
        doc(
            "Desired state.",
            example={"pools": ["h200"], "schedule": "0 6 * * 1", "duration": "12h"},
        ),
    ]
