"""A process that does nothing and is no task's, for as long as a test needs it and no longer."""

import contextlib
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """It is ended in any case: ``with Popen(...)`` alone would wait for it after a failed check."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()
