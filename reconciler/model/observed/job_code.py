"""Code that travels with a job, and the limits that the command, controller and nodes share."""

import msgspec

#: The most bytes of a pack, which is also what it holds: packs are not compressed.
PACK_BYTES_MAX = 256 * 2**20
#: The most files, folders and links of a pack.
PACK_ENTRIES_MAX = 100_000
#: What all files of a pack are from: 1 January 2000. Archives of Python packages can't be older
#: than 1980.
PACKED_AT = 946_684_800
#: What the digests of packs begin with in documents.
DIGEST_PREFIX = "sha256:"
#: The most bytes of a pack that one answer to a node holds.
PIECE_BYTES_MAX = 2**20


class JobCode(msgspec.Struct, frozen=True, omit_defaults=True):
    """The code that each task of a job starts with: a pack, or a commit of a repository.

    Attributes:
        digest: of the pack, as ``sha256:HEX``; empty: it is a commit, or there is none.
        git: URL of the repository.
        revision: full id of the commit.
        folder: the one in it that tasks start in; empty: its top.
    """

    digest: str = ""
    git: str = ""
    revision: str = ""
    folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.digest or self.git)

    def text(self) -> str:
        """Return it as people are shown it; empty: there is none."""
        below = f" in {self.folder}" if self.folder else ""
        if self.digest:
            return f"{self.digest}{below}"
        return f"{self.git} at {self.revision}{below}" if self.git else ""


NO_CODE = JobCode()
