"""``Access``: who people are, and as which Unix user their tasks run."""

from typing import Annotated, ClassVar, Literal

import msgspec

from reconciler.model.documents.fields import Metadata, Part, doc

UnixUser = Annotated[str, msgspec.Meta(pattern=r"^[a-z_][a-z0-9_-]{0,31}(?!\n)$")]


class IdentitySpec(Part, frozen=True):
    """One person or robot."""

    not_built: ClassVar[dict[str, str]] = {
        "keys": "signature checks are not built yet",
        "groups": "roles are not built yet",
    }

    email: Annotated[
        str, doc("Address that commits and jobs carry.", example="alice@example.org", min_length=3)
    ]
    unix_user: Annotated[
        UnixUser | None,
        doc(
            "User on the nodes that tasks run as, where the agent is root.",
            example="alice",
        ),
    ] = None


class AccessSpec(Part, frozen=True):
    """The people of a repository."""

    not_built: ClassVar[dict[str, str]] = {"roles": "roles are not built yet"}

    identities: Annotated[
        list[IdentitySpec],
        doc("Who there is.", example=[{"email": "alice@example.org", "unixUser": "alice"}]),
    ] = []


class Access(Part, frozen=True, tag_field="kind", tag="Access"):
    """Who people are."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "people"})]
    spec: Annotated[AccessSpec, doc("What is desired.", example={"identities": []})] = AccessSpec()
