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
            "Time (RFC 3339) from which on signatures by this key do not count, whatever "
            "time a commit claims.",
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
            "Unix user that tasks run as, if the agent is root.",
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
            "Identity that a commit signed by this key counts as. `self`: this identity. "
            "`submitter`: the identity in the line `Muster-Submitter`, only for jobs below "
            "`jobs/` and for approvals; this is for the controller's key, and whoever has "
            "its file can approve as anybody who may. `author`: the commit's author; this "
            "is for the key of a forge that merges.",
            example="submitter",
        ),
    ] = "self"


class RuleSpec(DocumentPart, frozen=True):
    """One rule of a role."""

    verbs: Annotated[
        list[
            Literal[
                "submit",
                "manage",
                "read",
                "change",
                "drain",
                "approve",
                "snapshot",
                "impersonate",
                "exec",
            ]
        ],
        doc(
            "`submit`: own jobs in `queues`. `manage`: everybody's jobs there. `read`: logs, "
            "metrics and checkpoints of everybody's jobs there. `change`: `objects`. `drain`: "
            "nodes of pools among `objects`. `approve`: held changes. `snapshot`: download the "
            "records of everybody's jobs, as `muster plan` does. `impersonate`: submit jobs of "
            "`owners`, which run as them. `exec`: run commands in tasks of own jobs in "
            "`queues`, and connect to their ports; jobs of others take `impersonate` as well.",
            example=["submit"],
        ),
    ]
    queues: Annotated[
        list[Text],
        doc(
            "Queues, with all their descendants; `*` matches any text.",
            example=["research", "ml-*"],
        ),
    ] = []
    objects: Annotated[
        list[Text],
        doc(
            "Structural objects: `Kind` or `Kind/name`; `*` matches any text.",
            example=["NodePool/h200-*", "Queue"],
        ),
    ] = []
    owners: Annotated[
        list[Text],
        doc(
            "Addresses that `impersonate` is about; `*` matches any text.",
            example=["robot-*@example.org"],
        ),
    ] = []

    max_priority: Annotated[
        Annotated[int, msgspec.Meta(ge=-(10**6), le=10**6)] | None,
        doc(
            "Highest number that a job may newly say as its `priority` by `submit` or "
            "`manage`. Default: 50, what a job has that says none.",
            example=80,
        ),
    ] = None
    priority_classes: Annotated[
        list[Text] | None,
        doc(
            "Classes that a job may newly name as its `priorityClass` by `submit` or "
            "`manage`; `*` matches any text. Default: any.",
            example=["background", "normal"],
        ),
    ] = None


class RoleSpec(DocumentPart, frozen=True):
    """Members of a role, and its rules."""

    name: Annotated[Text, doc("Name, shown in refusals.", example="researchers")]
    members: Annotated[
        list[Text],
        doc(
            "Addresses, `group:NAME`, or `*` for every identity.",
            example=["group:research", "bob@example.org"],
        ),
    ]
    allow: Annotated[
        list[RuleSpec],
        doc("Rules of the role.", example=[{"verbs": ["submit"], "queues": ["research"]}]),
    ]


class AccessSpec(DocumentPart, frozen=True):
    """The people of a repository."""

    identities: Annotated[
        list[IdentitySpec],
        doc("People and robots.", example=[{"email": "alice@example.org", "unixUser": "alice"}]),
    ] = []
    roles: Annotated[
        list[RoleSpec],
        doc(
            "Roles. If there is any, everything that no role allows is refused.",
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
    """Identities of people and robots, and what they may do."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "people"})]
    spec: Annotated[AccessSpec, doc("Desired state.", example={"identities": []})] = AccessSpec()
