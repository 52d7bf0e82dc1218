"""Kinds that the design has and this build does not: every document of them is refused.

They are declared so that the schema names them and says why, instead of calling a word that
stands in the documentation unknown.
"""

from typing import Annotated, ClassVar, Literal

from reconciler.model.documents.fields import Metadata, Part, doc


class QuotaSpec(Part, frozen=True):
    """Caps for a user, group, queue or pool."""

    not_built: ClassVar[dict[str, str]] = {
        "subject": "quotas are not built yet",
        "resources": "quotas are not built yet",
        "jobs": "quotas are not built yet",
        "budget": "quotas are not built yet",
    }


class Quota(Part, frozen=True, tag_field="kind", tag="Quota"):
    """Caps for a user, group, queue or pool."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "students"})]
    spec: Annotated[QuotaSpec, doc("What is desired.", example={})] = QuotaSpec()


class ReservationSpec(Part, frozen=True):
    """Nodes or amounts kept free for a window of time."""

    not_built: ClassVar[dict[str, str]] = {
        "nodes": "reservations are not built yet",
        "amounts": "reservations are not built yet",
        "window": "reservations are not built yet",
        "users": "reservations are not built yet",
        "maintenance": "reservations are not built yet",
    }


class Reservation(Part, frozen=True, tag_field="kind", tag="Reservation"):
    """Nodes or amounts kept free for a window of time."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "firmware"})]
    spec: Annotated[ReservationSpec, doc("What is desired.", example={})] = ReservationSpec()


class VolumeSpec(Part, frozen=True):
    """Storage that jobs ask for by name."""

    not_built: ClassVar[dict[str, str]] = {
        "mountPath": "volumes are not built yet",
        "type": "volumes are not built yet",
        "pools": "volumes are not built yet",
        "readOnly": "volumes are not built yet",
    }


class Volume(Part, frozen=True, tag_field="kind", tag="Volume"):
    """Storage that jobs ask for by name."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "imagenet"})]
    spec: Annotated[VolumeSpec, doc("What is desired.", example={})] = VolumeSpec()


class PolicySpec(Part, frozen=True):
    """A rule that objects must also satisfy."""

    not_built: ClassVar[dict[str, str]] = {
        "match": "policies are not built yet",
        "schema": "policies are not built yet",
        "message": "policies are not built yet",
    }


class Policy(Part, frozen=True, tag_field="kind", tag="Policy"):
    """A rule that objects must also satisfy."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "need-time-limit"})]
    spec: Annotated[PolicySpec, doc("What is desired.", example={})] = PolicySpec()
