"""Work in a folder of somebody else is done as that user, and says why it could not be."""

import os
import pwd
import shutil
import subprocess
import sys

import pytest

from reconciler.operations.backup import backup_contents, folder_user

NOBODY = pwd.getpwnam("nobody")
SETPRIV = shutil.which("setpriv")
_WORK = f"""
from reconciler.child_process import ChildUser
from reconciler.operations.backup import backup_contents, folder_user
try:
    folder_user.run_as(ChildUser({NOBODY.pw_uid}, {NOBODY.pw_gid}, ()), lambda: True)
except backup_contents.BackupError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not SETPRIV, reason="takes capabilities from root")
@pytest.mark.parametrize("missing", ["setgid", "setuid"])
def test_a_root_that_may_not_become_the_user_says_what_it_lacks(missing: str) -> None:
    made = subprocess.run(
        [str(SETPRIV), f"--bounding-set=-{missing}", sys.executable, "-c", _WORK],
        check=True,
        capture_output=True,
        text=True,
    )
    assert made.stdout == (
        "this process can't become nobody, to whom the folder belongs: Operation not permitted; "
        f"expected CAP_{missing.upper()}, and a user namespace that has uid {NOBODY.pw_uid} and "
        "its groups. To fix: run this as nobody, or as a root with CAP_SETGID and CAP_SETUID\n"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(13, "Permission denied", "/x"), "/x: Permission denied"),
    ],
)
def test_an_error_is_told_with_its_path_if_it_has_one(error: OSError, told: str) -> None:
    def work() -> bool:
        raise error

    with pytest.raises(backup_contents.BackupError) as found:
        folder_user.run_as(None, work)
    assert str(found.value) == told
