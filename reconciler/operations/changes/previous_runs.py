"""Tells who submits a job anew, as it was when its run ended, that nothing starts.

A run happens once: a document that comes back with the same run and the same work is that run. Only
the controller knows. It is asked before a commit, and again once it has read the commit.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from reconciler.changes import requests, yaml_edit
from reconciler.desired.documents import document_reader
from reconciler.model.rules import past_runs
from reconciler.model.state import states
from reconciler.operations.changes import change_requests, rerun_edit
from reconciler.operations.client import api_client, endpoints

#: The most names of a submission to look up; for more, none is.
NAMES_MAX = 50
#: How long to wait for a controller's answer about one job.
LOOK_S = 3.0


class PreviousRun(msgspec.Struct, frozen=True):
    """A run that has ended, as a controller shows it.

    Attributes:
        submitted: when it was submitted, which tells it from others of its number.
        key: ``NAME.RUN.HASH``; empty from a controller of an earlier version.
        checkpoint_folder: empty if it has none.
    """

    run: int
    submitted: str
    state: str
    owner: str = ""
    key: str = ""
    checkpoint_folder: str = ""


def _documents(changes: Sequence[change_requests.Change]) -> Iterator[dict[str, Any]]:
    """Yield submitted documents that have a name, as far as they can be read."""
    for change in changes:
        if isinstance(change, change_requests.Submit):
            with contextlib.suppress(yaml_edit.EditError, KeyError, TypeError):
                for one in yaml_edit.documents(change.text):
                    if one and isinstance(one["metadata"]["name"], str):
                        yield one


def names_of(changes: Sequence[change_requests.Change]) -> list[str]:
    """Return the names of submitted jobs, as far as they can be read."""
    return list(dict.fromkeys(one["metadata"]["name"] for one in _documents(changes)))


def left_checkpoints(
    changes: Sequence[change_requests.Change], been: Mapping[str, PreviousRun]
) -> dict[str, str]:
    """Return what is to be said of jobs that begin without the checkpoints of their last run.

    Args:
        changes: what is submitted.
        been: the last run of each name, which has ended.
    """
    found: dict[str, str] = {}
    for document in _documents(changes):
        name, spec = document["metadata"]["name"], document.get("spec")
        last = been.get(name)
        checkpoint = spec.get("checkpoint") if isinstance(spec, dict) else None
        if last is None or not isinstance(checkpoint, dict) or spec is None:
            continue
        if checkpoint.get("path") or spec.get("resumeFrom") or not last.checkpoint_folder:
            continue
        digest = document_reader.execution_hash(spec)
        is_same_run = last.key == f"{name}.{spec.get('run', 1)}.{digest}"
        if is_same_run or not last.key or spec.get("owner", last.owner) != last.owner:
            continue
        why = "it is another run" if last.key.endswith(digest) else "what it executes has changed"
        found[name] = (
            f"{name} begins without the checkpoints of run {last.run}, because {why}. To go on "
            f"from them instead: spec.resumeFrom: {last.key}"
        )
    return found


def ended(
    names: Collection[str],
    endpoint: endpoints.Endpoint | None,
    *,
    or_ephemeral: bool = False,
) -> dict[str, PreviousRun]:
    """Return ended runs of jobs of these names, as far as a controller knows them.

    With ``or_ephemeral`` also those that are not in git, and may not have ended: another job of the
    name comes after them.
    """
    found: dict[str, PreviousRun] = {}
    if endpoint is None or not names or len(names) > NAMES_MAX:
        return found
    try:
        with api_client.ApiClient(endpoint, timeout_s=LOOK_S, answer_s=LOOK_S) as api:
            for name in names:
                try:
                    job = api.get(f"/v1/jobs/{name}")["job"]
                except api_client.ApiError as error:
                    if error.status == 404:
                        continue
                    raise
                is_apart = or_ephemeral and job.get("ephemeral", False)
                if is_apart or job["state"] in states.FINISHED_JOB_STATES:
                    found[name] = PreviousRun(
                        job["run"],
                        job["submitted"],
                        job["state"],
                        job["owner"],
                        job.get("key", ""),
                        job.get("checkpointFolder", ""),
                    )
    except (api_client.ApiError, endpoints.EndpointError):
        return {}  # without an answer there is no warning
    return found


class SpentRuns:
    """Questions to a controller about contents that are about to be committed in a clone.

    Args:
        endpoint: the controller; None: nobody is asked.
    """

    def __init__(self, endpoint: endpoints.Endpoint | None) -> None:
        self._endpoint = endpoint
        self._asked = 0

    def __call__(self, document: Mapping[str, Any]) -> str:
        """Return why a document of a job would start nothing.

        Empty: it would, as far as is known. A clone can be worked in without a controller, so
        nobody is asked any more once it did not answer, or about more jobs than ``NAMES_MAX``.
        """
        if self._endpoint is None or self._asked >= NAMES_MAX:
            return ""
        self._asked += 1
        try:
            key = rerun_edit.run_key(document)
            with api_client.ApiClient(self._endpoint, timeout_s=LOOK_S, answer_s=LOOK_S) as api:
                return self._why(api, str(document["metadata"]["name"]), key)
        except requests.ConflictError:
            return ""  # it is refused for that
        except (api_client.ApiError, endpoints.EndpointError):
            self._endpoint = None
            return ""

    def _why(self, api: api_client.ApiClient, name: str, key: str) -> str:
        try:
            job = api.get(f"/v1/jobs/{name}", key=key)["job"]
        except api_client.ApiError as error:
            if error.status == 404:
                return ""
            if error.status == 410:
                return past_runs.why_not_again(key, past_runs.OVER, _highest_run(api, name))
            raise
        # a controller of an earlier version shows the newest run whatever is asked
        if job.get("key") != key or not past_runs.is_spent(job["state"], is_removed=job["removed"]):
            return ""
        return past_runs.why_not_again(key, job["state"], job.get("highestRun", 0))


def _highest_run(api: api_client.ApiClient, name: str) -> int:
    """Return the highest number of a run of a name; 0: no run of it has a record."""
    try:
        found: int = api.get(f"/v1/jobs/{name}")["job"].get("highestRun", 0)
    except api_client.ApiError as error:
        if error.status == 404:
            return 0
        raise
    return found


def without_start(
    before: Mapping[str, PreviousRun], endpoint: endpoints.Endpoint | None
) -> dict[str, str]:
    """Return why nothing starts, by name of jobs that have no newer run than ``before`` after
    their commit was read.
    """
    return {
        name: f"nothing starts: run {run.run} is {run.state} already, and a run happens once. "
        f"To fix: muster rerun {name}"
        for name, run in ended(before, endpoint).items()
        if run.submitted <= before[name].submitted
    }
