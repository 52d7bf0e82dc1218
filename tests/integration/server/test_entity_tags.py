"""Who has the newest answer already gets a 304 without its body, and else the whole answer."""

import pytest

from reconciler.model.state.states import JobState
from tests.integration.server import parts
from tests.unit.store import samples

PATHS = (
    "/v1/jobs",
    "/v1/jobs?limit=1",
    "/v1/jobs/train",
    "/v1/job-counts",
    "/v1/nodes",
    "/v1/queues",
    "/v1/quotas",
    "/v1/pools",
    "/v1/drift",
    "/v1/sync",
    "/v1/snapshot",
)


@pytest.mark.parametrize("path", PATHS)
def test_who_has_the_answer_gets_no_body(served: parts.Served, path: str) -> None:
    served.commit(jobs=(samples.job("train"), samples.job("other", order=2)))
    first = served.client.get(path)
    assert first.status_code == 200
    tag = first.headers["etag"]
    for asked in (tag, tag.removeprefix("W/"), f'"another", {tag}', "*"):
        again = served.client.get(path, headers={"If-None-Match": asked})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert served.client.get(path, headers={"If-None-Match": '"another"'}).json() == first.json()
    assert served.client.get("/v1/jobs/train").status_code == 200, "the connection goes on"


def test_a_change_is_told(served: parts.Served) -> None:
    served.commit(jobs=(samples.job("train"),))
    tag = served.client.get("/v1/jobs").headers["etag"]
    served.commit(jobs=(samples.job("train", state=JobState.SUCCEEDED),))
    changed = served.client.get("/v1/jobs", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.json()["items"][0]["state"] == "Succeeded"
    assert changed.headers["etag"] != tag


def test_a_tag_lets_nobody_in(served: parts.Served) -> None:
    served.commit(jobs=(samples.job("train"),))
    tag = served.client.get("/v1/jobs").headers["etag"]
    headers = {"If-None-Match": tag, "Authorization": "Bearer nobodys"}
    refused = served.client.get("/v1/jobs", headers=headers)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "Unauthorized"
    unknown = served.client.get("/v1/jobs/nothing", headers={"If-None-Match": "*"})
    assert unknown.status_code == 404
