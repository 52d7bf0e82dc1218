"""Requests about ephemeral jobs: jobs that no file in git describes, because they are short.

Their runs live in the store like all others, with the normalised document in the job's record.
"""

from typing import Literal

import msgspec

from reconciler.model import desired

#: The most ephemeral jobs that have not ended: of all, and of one owner.
EPHEMERAL_MAX, OWNER_EPHEMERAL_MAX = 1000, 50
#: The longest document of one, in bytes: what is larger belongs in git.
DOCUMENT_BYTES_MAX = 16 * 2**10
#: What can be done to one that is there.
EphemeralVerb = Literal["cancel", "hold", "release", "rerun"]
EPHEMERAL_VERBS: tuple[EphemeralVerb, ...] = ("cancel", "hold", "release", "rerun")
#: Said of a job that is already as it is asked for.
UNCHANGED = "it is so already"


class BeginEphemeral(msgspec.Struct, frozen=True, tag="begin"):
    """A request of ``by`` to begin jobs without a file in git: all, or none.

    ``id`` tells its answer apart from others.
    """

    id: str
    by: str
    jobs: tuple[desired.Job, ...]


class ChangeEphemeral(msgspec.Struct, frozen=True, tag="change"):
    """A request of ``by`` to cancel, hold, release or run again a job without a file in git.

    ``run_key`` and ``owner`` are those of the run whose change was reviewed: another one of its
    name is left as it is. A server of an earlier version does not say them, and changes nothing.
    """

    id: str
    verb: EphemeralVerb
    subject: str
    by: str
    run_key: str = ""
    owner: str = ""
    reason: str = ""
