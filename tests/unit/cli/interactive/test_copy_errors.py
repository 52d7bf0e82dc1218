"""What programs in a task say of a copy is told in words, with the place and a remedy."""

import errno
import os

import pytest

from reconciler.cli.interactive import copy_errors

FROM = copy_errors.TaskPlace("train", "out/model.pt", "out")
DENIED = (
    "permission denied: who copies has no right to it. To fix: have it given (muster exec train -- "
    "ls -la %s shows whose it is), or choose another place"
)
TO = copy_errors.TaskPlace("train", "/data/model.pt")


@pytest.mark.parametrize(
    ("said", "place", "told"),
    [
        (
            ("tar: model.pt: Cannot stat: No such file or directory\n"
            "tar: Exiting with failure status due to previous errors\n"),
            FROM,
            [("train:out/model.pt: there is no such file or folder. To fix: see what is there "
             "(muster exec train -- ls -la out)")],
        ),
        (
            "tar: model.pt/a: Cannot open: Permission denied\n",
            FROM,
            [f"train:out/model.pt/a: {DENIED % 'out/model.pt'}"],
        ),
        (
            ("mktemp: failed to create directory via template '/data/.muster-cp.XXXXXX': "
            "Permission denied\n"),
            TO,
            [f"train:/data: {DENIED % '/'}"],
        ),
        (
            ("tar: model.pt: Wrote only 4096 of 10240 bytes\n"
            "tar: model.pt: Cannot write: No space left on device\n"),
            TO,
            [("train:/data/model.pt: the disk is full. To fix: make room (muster exec train -- "
             "df -h /data shows it), or choose another place")],
        ),
        ("", TO, ["train:/data/model.pt: the copy ended with exit code 2 in the task"]),
    ],
)  # fmt: skip
def test_a_failure_in_the_task(said: str, place: copy_errors.TaskPlace, told: list[str]) -> None:
    assert copy_errors.in_task(said.encode(), place, 2) == told


def test_many_messages_are_cut() -> None:
    said = "".join(f"tar: {at}: Cannot open: Permission denied\n" for at in range(30))
    told = copy_errors.in_task(said.encode(), FROM, 2)
    assert len(told) == copy_errors.TOLD_MAX + 1
    assert told[-1] == "and 20 more messages"


def test_an_error_of_this_machine() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/ada/model.pt")
    assert copy_errors.here("x", error) == (
        "/home/ada/model.pt here: the disk is full. To fix: make room (df -h /home/ada shows it), "
        "or choose another place"
    )
