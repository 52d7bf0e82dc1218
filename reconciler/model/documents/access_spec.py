"""``Access``: who people are, with which keys they sign, and what they may do."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Metadata, doc

UnixUser = Annotated[str, msgspec.Meta(pattern=r"^[a-z_][a-z0-9_-]{0,31}(?!\n)$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPm0bTgUaYWVSMX0qJ5mjyPyPbDUpiKkQa6ri4YPSxCK"


class KeySpec(DocumentPart, frozen=True):
    """A public key that commits are signed with: one of `ssh` and `gpg`."""

    ssh: Annotated[
        str | None,
        doc(
            "Public SSH key, as in a .pub file.",
            example=_KEY,
        ),
    ] = None
    gpg: Annotated[
        str | None,
        doc(
            "Public GPG key, armoured; its subkeys count too.",
            example="-----BEGIN PGP PUBLIC KEY BLOCK-----\n…",
        ),
    ] = None
    valid_before: Annotated[
        str | None,
        doc(
            "From then on nothing counts that it signs, whatever time a commit claims (RFC 3339).",
            example="2027-07-01T00:00:00Z",
        ),
    ] = None


#: Characters that nobody sees: controls, and those that join, part or turn others.
_UNSEEN = r"\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
#: One address, nothing in it that can't be seen, and none that roles take for a group.
ADDRESS = rf"^(?!group:)[^\s<>\"*,{_UNSEEN}]+(?!\n)$"


class IdentitySpec(DocumentPart, frozen=True):
    """One person or robot."""

    email: Annotated[
        str,
        doc(
            "Address that commits and jobs carry.",
            example="alice@example.org",
            min_length=3,
            max_length=254,
            pattern=ADDRESS,
        ),
    ]
    unix_user: Annotated[
        UnixUser | None,
        doc(
            "User on the nodes that tasks run as, where the agent is root.",
            example="alice",
        ),
    ] = None
    groups: Annotated[
        list[Text], doc("Groups that roles name as `group:NAME`.", example=["research"])
    ] = []
    keys: Annotated[
        list[KeySpec],
        doc(
            "Keys that sign its commits.",
            example=[{"ssh": _KEY}],
        ),
    ] = []
    acts: Annotated[
        Literal["self", "submitter", "author"],
        doc(
            "As whom a commit counts that is signed with its key: `self`; `submitter`, whom the "
            "line `Muster-Submitter` names, for jobs below `jobs/` and for approvals only (the "
            "controller's key: who has its file approves as anybody who may); "
            "`author`, the commit's author (the key of a forge that merges).",
            example="submitter",
        ),
    ] = "self"


class RuleSpec(DocumentPart, frozen=True):
    """What a role allows."""

    verbs: Annotated[
        list[Literal["submit", "manage", "change", "drain", "approve", "snapshot"]],
        doc(
            "`submit`: one's own jobs in `queues`; `manage`: everybody's there; `change`: "
            "`objects`; `drain`: nodes of pools among `objects`; `approve`: what safety holds; "
            "`snapshot`: take away the records of everybody's jobs, as `muster plan` does.",
            example=["submit"],
        ),
    ]
    queues: Annotated[
        list[Text],
        doc("Queues, and all below them; `*` stands for any text.", example=["research", "ml-*"]),
    ] = []
    objects: Annotated[
        list[Text],
        doc(
            "Structural objects: `Kind` or `Kind/name`; `*` stands for any text.",
            example=["NodePool/h200-*", "Queue"],
        ),
    ] = []


class RoleSpec(DocumentPart, frozen=True):
    """Who has it, and what it allows."""

    name: Annotated[Text, doc("Name, which refusals tell.", example="researchers")]
    members: Annotated[
        list[Text],
        doc(
            "Addresses, `group:NAME`, or `*` for every identity.",
            example=["group:research", "bob@example.org"],
        ),
    ]
    allow: Annotated[
        list[RuleSpec],
        doc("What it allows.", example=[{"verbs": ["submit"], "queues": ["research"]}]),
    ]


class AccessSpec(DocumentPart, frozen=True):
    """The people of a repository."""

    identities: Annotated[
        list[IdentitySpec],
        doc("Who there is.", example=[{"email": "alice@example.org", "unixUser": "alice"}]),
    ] = []
    roles: Annotated[
        list[RoleSpec],
        doc(
            "Who may do what. Where there are any, what none allows is not allowed.",
            example=[
                {
                    "name": "researchers",
                    "members": ["group:research"],
                    "allow": [{"verbs": ["submit"], "queues": ["research"]}],
                }
            ],
        ),
    ] = []


class AccessDocument(DocumentPart, frozen=True, tag_field="kind", tag="Access"):
    """Who people are, and what they may do."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "people"})]
    spec: Annotated[AccessSpec, doc("What is desired.", example={"identities": []})] = AccessSpec()
