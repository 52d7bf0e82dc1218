"""Runs the site's executables that check or repair a node, with a deadline and without a shell."""

from reconciler import child_process
from reconciler.model.observed.health_checks import CheckCommand, CheckResult
from reconciler.model.observed.task_reports import told_text
from reconciler.model.values.text_lines import split_lines

OUTPUT_BYTES_MAX = 4096
MESSAGE_CHARACTERS_MAX = 300


class SiteChecks:
    """The site's executables.

    If not even SIGKILL ends a child, its check does not run again until it has gone. So a check
    leaves at most one such process.
    """

    def __init__(self) -> None:
        self._stuck = child_process.StuckChildren()

    def run(self, check: CheckCommand) -> CheckResult:
        """Run an executable. The first line that it prints is the reason of its verdict."""
        stuck = self._stuck.pids(check.name)
        if stuck:
            return CheckResult(
                check.name, "failed", f"process {stuck[0]}, which made this check, can't be killed"
            )
        try:
            result = child_process.run_child(
                child_process.ChildProgram(
                    check.command,
                    stdout=child_process.ChildOutput.READ,
                    stderr=child_process.ChildOutput.MERGE,
                ),
                child_process.ChildLimits(
                    check.timeout_s,
                    OUTPUT_BYTES_MAX,
                    child_process.Excess.KEEP_BEGINNING,
                    leftovers=child_process.Leftovers.KILL,
                ),
            )
        except OSError as problem:
            return CheckResult(check.name, "failed", f"it can't be run: {problem.strerror}")
        self._stuck.note(check.name, result)
        return _verdict(check, result)


def _verdict(check: CheckCommand, result: child_process.ChildResult) -> CheckResult:
    if result.status is None:
        message = f"it did not end within {check.timeout_s:g} s"
        return CheckResult(check.name, "failed", message)
    if result.status == 0:
        return CheckResult(check.name)
    lines = split_lines(result.stdout.decode("utf-8", "replace").strip())
    first = told_text(lines[0], MESSAGE_CHARACTERS_MAX) if lines else f"status {result.status}"
    return CheckResult(check.name, "degraded" if result.status == 1 else "failed", first)
