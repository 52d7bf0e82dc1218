"""The controller process of a cluster on this machine: start, end and exit message.

It writes its log into the state folder and ends with this process.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agents.logs import rotation
from reconciler import interpreter
from reconciler.model.values.text_lines import split_lines

MODULE = "reconciler.controller.process"
#: How long the controller may take to leave before it is killed.
STOP_S_MAX = 15.0
#: The longest reason to show of a controller that has ended.
_WORDS_MAX = 400


class ControllerProcess:
    """A controller that can be restarted with the same options.

    Args:
        state: folder of its store, its tokens and its log.
        options: of ``muster controller``, without those that follow from the folder.
        module: to run; another one than the controller's may have another core.
    """

    def __init__(self, state: Path, options: Sequence[str], module: str = MODULE) -> None:
        self._log = state / "controller.log"
        self._command = [
            *interpreter.module_command(module),
            *("--state", str(state), *options),
            *("--token-file", str(state / "tokens"), "--allow-root", "--any-node-token"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        #: Where in its log the controller that was started last begins.
        self._log_begins = 0

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs or was never started."""
        return None if self._process is None else self._process.poll()

    def start(self, if_given: Mapping[str, str | Path | None]) -> None:
        """Start the process; ``if_given``: more options, left out where the value is None."""
        command = [*self._command, "--die-with-parent", str(os.getpid())]
        for option, value in if_given.items():
            command += [] if value is None else [option, str(value)]
        with os.fdopen(rotation.append_private(self._log), "ab") as output:
            self._log_begins = output.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ask it to leave, and end it where it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self) -> str:
        """Return how the process ended and why, or the last warning of one that runs.

        Warnings tell of the cluster, not why a process ended: only the last line that is neither a
        warning nor information is quoted as the cause. A killed process logs nothing about it:
        then the last line of its log is shown, not as a cause.
        """
        try:
            size = self._log.stat().st_size
            with self._log.open("rb") as log:  # one that was cut meanwhile: from its beginning
                log.seek(self._log_begins if self._log_begins <= size else 0)
                lines = split_lines(log.read().decode(errors="replace"))
        except OSError:
            lines = []
        code = self.exit_code
        written = [line for line in lines if line.strip()]
        if code is not None and code < 0:
            how = f"killed by signal {-code}"
            last = written[-1][:_WORDS_MAX] if written else ""
            return f"{how}; its last line was: {last}" if last else how
        if code == 0:
            return f"something asked it to stop (status 0); its log is {self._log}"
        unrelated = ("INFO", "DEBUG") if code is None else ("INFO", "DEBUG", "WARNING")
        messages = [line for line in written if not _has_level(line, unrelated)]
        how = "" if code is None else f"status {code}"
        last = messages[-1][:_WORDS_MAX] if messages else f"see {self._log}"
        return f"{how}: {last}" if how else last


def _has_level(line: str, levels: tuple[str, ...]) -> bool:
    """Return True if a line of the controller's log, readable or JSON, has one of the levels."""
    return any(f" {level} " in line or f'"level":"{level}"' in line for level in levels)
