"""Runs the site's executables that check or repair a node, with a deadline and without a shell."""

import subprocess

from agents.host import commands
from reconciler.model.observed.health_checks import CheckCommand, CheckResult
from reconciler.model.observed.task_reports import told_text

OUTPUT_BYTES_MAX = 4096
MESSAGE_CHARACTERS_MAX = 300


class SiteChecks:
    """The site's executables.

    If not even SIGKILL ends a child, its check does not run again until it has gone. So a check
    leaves at most one such process.
    """

    def __init__(self) -> None:
        self._hung: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, check: CheckCommand) -> CheckResult:
        """Run an executable. The first line that it prints is the reason of its verdict."""
        self._hung = {name: child for name, child in self._hung.items() if child.poll() is None}
        if check.name in self._hung:
            pid = self._hung[check.name].pid
            return CheckResult(
                check.name, "failed", f"process {pid}, which made this check, can't be killed"
            )
        found, left = _run(check)
        if left is not None:
            self._hung[check.name] = left
        return found


def _run(check: CheckCommand) -> tuple[CheckResult, subprocess.Popen[bytes] | None]:
    """Return the result, and the process if it cannot be ended."""
    try:
        ran = commands.run(
            list(check.command), check.timeout_s, OUTPUT_BYTES_MAX, errors=True, drop=True
        )
    except OSError as problem:
        return CheckResult(check.name, "failed", f"it can't be run: {problem.strerror}"), None
    if ran.status is None:
        message = f"it did not end within {check.timeout_s:g} s"
        return CheckResult(check.name, "failed", message), ran.left
    if ran.status == 0:
        return CheckResult(check.name), ran.left
    lines = ran.said.decode("utf-8", "replace").strip().splitlines()
    first = told_text(lines[0], MESSAGE_CHARACTERS_MAX) if lines else f"status {ran.status}"
    return CheckResult(check.name, "degraded" if ran.status == 1 else "failed", first), ran.left
