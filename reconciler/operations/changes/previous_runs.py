"""Tells who submits a job anew, as it was when its run ended, that nothing starts.

A run happens once: a document that comes back with the same run and the same work is that run. Only
the controller knows, and only once it has read the commit: so it is asked before and after.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence

from reconciler.changes import yaml_edit
from reconciler.model.state import states
from reconciler.operations.changes import change_requests
from reconciler.operations.client import api_client, endpoints

#: The most names of a submission to look up; for more, none is.
NAMES_MAX = 50
#: How long to wait for a controller's answer about one job.
LOOK_S = 3.0
#: Identity of a run: its number, when it was submitted, how it ended.
Run = tuple[int, str, str]


def names_of(changes: Sequence[change_requests.Change]) -> list[str]:
    """Return the names of submitted jobs, as far as they can be read."""
    names: dict[str, None] = {}
    for change in changes:
        if isinstance(change, change_requests.Submit):
            with contextlib.suppress(yaml_edit.EditError, KeyError, TypeError):
                written = [
                    one["metadata"]["name"] for one in yaml_edit.documents(change.text) if one
                ]
                names |= dict.fromkeys(one for one in written if isinstance(one, str))
    return list(names)


def ended(names: Collection[str], endpoint: endpoints.Endpoint | None) -> dict[str, Run]:
    """Return ended runs of jobs of these names, as far as a controller knows them."""
    found: dict[str, Run] = {}
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
                if job["state"] in states.FINISHED_JOB_STATES:
                    found[name] = (job["run"], job["submitted"], job["state"])
    except (api_client.ApiError, endpoints.EndpointError):
        return {}  # without an answer there is no warning
    return found


def without_start(before: Mapping[str, Run], endpoint: endpoints.Endpoint | None) -> dict[str, str]:
    """Return why nothing starts, by name of jobs that are as ``before`` after their commit was
    read.
    """
    return {
        name: f"nothing starts: run {run[0]} is {run[2]} already, and a run happens once. To fix: "
        f"muster rerun {name}"
        for name, run in ended(before, endpoint).items()
        if run == before[name]
    }
