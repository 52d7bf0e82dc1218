"""The option `--code`: a folder whose files go along with a job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from reconciler.cli import lazy_import, terminal
from reconciler.model.values import quantities
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.changes import job_document
    from reconciler.operations.client import api_client, file_sender
    from reconciler.operations.code import folder_files, folder_pack
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    file_sender = lazy_import.module("reconciler.operations.client.file_sender")
    folder_files = lazy_import.module("reconciler.operations.code.folder_files")
    folder_pack = lazy_import.module("reconciler.operations.code.folder_pack")

Code = Annotated[
    Path | None,
    typer.Option(
        "--code",
        help="Folder whose files go along, as they are now; the job starts in them. Of a git "
        "repository what is not ignored, without what .musterignore names. Default: none.",
    ),
]
#: The field that `--chdir` sets.
_FOLDER = "workingDirectory"


class GivenCode:
    """The folder of `--code`, packed; without one, nothing is done.

    Args:
        folder: as it was given.
        failed: exit code if something is wrong with it.
    """

    def __init__(self, folder: Path | None, failed: int = terminal.ERROR) -> None:
        self._failed = failed
        self._pack: folder_pack.PackedFolder | None = None
        if folder is None:
            return
        try:
            self._pack = folder_pack.pack(folder)
        except folder_files.PackingError as error:
            self._fail(str(error), error.details)
        terminal.note(
            f"packed {terminal.counted(self._pack.files, 'file')} of {folder}, "
            f"{quantities.format_memory(self._pack.size)}"
        )

    def added_to(self, options: "job_document.JobOptions") -> "job_document.JobOptions":
        """Return the options of a job with its code; a relative `--chdir` is a folder in it."""
        if self._pack is None:
            return options
        code, fields = {"digest": self._pack.digest}, dict(options.fields)
        chosen = str(fields.get(_FOLDER) or "")
        if chosen and not chosen.startswith("/"):
            del fields[_FOLDER]
            below = chosen.removeprefix("./").strip("/")
            if below not in ("", "."):
                code["path"] = below
        return msgspec.structs.replace(options, code=code, fields=fields)

    def send(self, server: str | None, token_file: str | None, owner: str | None) -> None:
        """Have the controller keep the pack, unless it has it. Exit if it does not.

        Args:
            owner: of the job, where the token is no person's.
        """
        if self._pack is None:
            return
        path, query = f"/v1/code/{self._pack.digest}", {"owner": owner} if owner else {}
        try:
            with file_sender.FileSender(endpoints.find(server, token_file, Path.cwd())) as api:
                try:
                    api.get(path, **query)
                except api_client.ApiError as error:
                    if error.status != 404:
                        raise
                    api.put(path, self._pack.file, self._pack.size, query)
        except endpoints.EndpointError as error:
            self._fail(str(error))
        except api_client.ApiError as error:
            refused = terminal.REFUSED if self._failed == terminal.ERROR else self._failed
            self._fail(
                f"the code could not be sent: {error}",
                error.problems,
                refused if error.refused else self._failed,
            )
        finally:
            self._pack.file.close()

    def _fail(
        self, message: str, details: "tuple[str, ...]" = (), code: int | None = None
    ) -> NoReturn:
        terminal.fail(message, self._failed if code is None else code, details)
