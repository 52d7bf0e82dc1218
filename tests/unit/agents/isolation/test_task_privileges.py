"""What can be taken from tasks is tried; what the kernel refuses is told, not asked again."""

import errno
import os
from collections.abc import Callable

import pytest

from agents.isolation import system_call_filter, task_privileges

IS_ROOT = os.geteuid() == 0


def refuse(number: int) -> Callable[[], None]:
    """A call that the kernel refuses."""

    def call() -> None:
        raise OSError(number, os.strerror(number))

    return call


def status() -> dict[str, str]:
    """What the kernel says of this process."""
    with open("/proc/self/status", encoding="ascii") as stream:  # noqa: PTH123
        return {line.split(":")[0]: line.split(":")[1].strip() for line in stream if ":" in line}


def test_what_can_be_taken_is_tried_by_somebody_else() -> None:
    before = status()
    found = task_privileges.tried()
    kept = ("NoNewPrivs", "Seccomp", "CapBnd")
    assert {name: status()[name] for name in kept} == {name: before[name] for name in kept}
    taken = ["no-new-privileges", "system-calls"]
    assert found.restricts == (("capabilities", *taken) if IS_ROOT else tuple(taken))
    assert not found.problems


def test_what_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_call_filter, "install", refuse(errno.EINVAL))
    found = task_privileges.tried()
    assert "system-calls" not in found.restricts
    assert "no-new-privileges" in found.restricts
    assert found.problems == ("system-calls of tasks: Invalid argument",)
    # it is not asked for again, and the rest is taken
    monkeypatch.setattr(task_privileges, "forbid_gains", lambda: None)
    found.restrict_as_user()


def test_what_is_refused_later_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that could be restricted does not start without."""
    monkeypatch.setattr(task_privileges, "forbid_gains", refuse(errno.EPERM))
    with pytest.raises(PermissionError):
        task_privileges.Privileges(("no-new-privileges",)).restrict_as_user()
