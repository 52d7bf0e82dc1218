"""What holds for all tests: none fails because the machine is busy, or for where it was started.

Before the first of them the project is compiled, once.
"""

import compileall
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from reconciler import package_data

PROJECT = package_data.checkout()

# pytest keeps tests as it rewrites them for their asserts, which is most of what collecting takes
sys.dont_write_bytecode = False

# A login of whoever runs the tests is nobody's here.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent/config"

hypothesis.settings.register_profile("muster", deadline=None)
hypothesis.settings.load_profile("muster")

# What a script starts in the background ignores Ctrl-C, and so does all that it starts: tests
# of what Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Compiles what the tests start, once, in the process that begins all others.

    Containers often set ``PYTHONDONTWRITEBYTECODE``, under which Python reads compiled modules
    but keeps none: each of the thousands of processes of these tests would compile the whole
    project for itself, which was a third of what a controller's start costs.
    """
    if hasattr(config, "workerinput"):
        return
    for package in ("reconciler", "agents", "bench", "tests"):
        compileall.compile_dir(PROJECT / package, quiet=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have two of the processes begin with tests that mostly wait, the others with the rest.

    Each process is given a part of the tests that is as long as the others'. Where one of them has
    all tests that wait, these are still to be run when there is nothing left to do beside them.
    """
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    waiting = [item for item in items if "integration" in item.path.parts]
    part, half = len(items) // max(processes, 1), len(waiting) // 2
    if processes < 3 or len(waiting) > part:
        return
    while half < len(waiting) and waiting[half].path == waiting[half - 1].path:
        half += 1  # one file's tests share what they start
    others = [item for item in items if "integration" not in item.path.parts]
    first = others[: part - half]
    items[:] = [*waiting[:half], *first, *waiting[half:], *others[len(first) :]]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a name that leaves room for Unix sockets, wherever those of pytest are."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def _own_umask() -> Iterator[None]:
    """Undo what a test, or what it calls, does to the umask of this process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
