"""Facts about the repository, known from the command line before the first request."""

import pathlib

import msgspec


class LocalRepository(msgspec.Struct, frozen=True):
    """A repository in a folder of this machine, and the folder in it that is read."""

    path: pathlib.Path
    sub_path: str


class RepositoryFacts(msgspec.Struct, frozen=True):
    """The repository to which users' changes are pushed; without one, the defaults.

    Attributes:
        folder: the folder of the repository that is read; empty: all of it.
        branch: the branch that is read and pushed to; empty: it has no name here.
        jobs_folder: the folder below which commits count that are signed for users.
        local: the repository, if it is on this machine.
        signing_key: the public key that signs commits for users. None: nothing signs them; empty:
            it can't be told.
    """

    folder: str = ""
    branch: str = ""
    jobs_folder: str = "jobs/"
    local: LocalRepository | None = None
    signing_key: str | None = None
