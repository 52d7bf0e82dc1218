"""Judges files that are no revision yet: a person's folder, or a pull request.

Paths and bytes come in; the state that would be in force, and every problem, comes out, as the
loader would report it for a repository with just these files.
"""

from collections.abc import Mapping

from reconciler.desired.apply import applied, file_index
from reconciler.desired.apply.last_good import LastGood
from reconciler.desired.checks import job_names
from reconciler.model import desired

#: What is said of jobs that name something which the structure in force has not.
_OF_STRUCTURE = frozenset({*job_names.KIND_OF_RULE, "unknown-level"})


def check(
    files: Mapping[str, bytes], known: LastGood | None = None, now: float = 0.0
) -> desired.Desired:
    """Return the desired state of these files, with problems in ``status.problems``.

    Args:
        files: path to bytes, only those that the loader would read.
        known: state in force, for judging what stays of it.
        now: seconds since the epoch, for waivers that have ended.
    """
    state = applied.Applied(known or LastGood(), lambda path: files[path])
    state.set_time(now)
    changes = [file_index.FileChange(path, path, data) for path, data in sorted(files.items())]
    state.apply("files", changes, {})
    problems = state.problems()
    if known is None and state.structure_refused:
        # Nothing was in force before, so that every job would be told that its queue is not there.
        problems = tuple(
            one
            for one in problems
            if one.rule not in _OF_STRUCTURE or not one.object.startswith("Job/")
        )
    wrong = any(problem.severity == "error" for problem in problems)
    return desired.Desired(
        generation=1,
        structure=state.basis.structure,
        jobs=state.jobs,
        refused=state.refused,
        status=desired.SyncStatus(sync="OutOfSync" if wrong else "Synced", problems=problems),
    )
