"""Lists have the fields that somebody asks for, and what tells their items from each other."""

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from reconciler.model.state.states import AttemptState, JobState
from reconciler.server.api import field_choice
from tests.integration.server import parts
from tests.unit.store import samples


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("fields")
    made = parts.Served(folder)
    job = samples.job("train", state=JobState.RUNNING)
    made.commit(
        jobs=(job,),
        attempts=(samples.attempt(job, state=AttemptState.RUNNING),),
        nodes=(samples.node(),),
        events=(samples.event("x", job="train"),),
    )
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.fixture(scope="module")
def lists(served: parts.Served) -> dict[str, dict[str, Any]]:
    """Return the operations that answer with a list, by path, as the server describes itself."""
    told = served.client.get("/schema/openapi.json").json()
    schemas = told["components"]["schemas"]
    found = {}
    for path, methods in told["paths"].items():
        answers = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        name = answers.get("application/json", {}).get("schema", {}).get("$ref", "").split("/")[-1]
        if {"apiVersion", "items"} <= schemas.get(name, {}).get("properties", {}).keys():
            found[path] = methods["get"]
    return found


def test_every_list_takes_fields(lists: dict[str, dict[str, Any]]) -> None:
    assert len(lists) == len(field_choice.IDENTITY)
    for path, operation in lists.items():
        assert "fields" in {one["name"] for one in operation["parameters"]}, path


def query(path: str, **more: str) -> dict[str, str]:
    return {"day": "2026-11-27", **more} if path.endswith("/attempts") else dict(more)


def test_an_unknown_field_is_told_with_the_known_ones(
    served: parts.Served, lists: dict[str, dict[str, Any]]
) -> None:
    for path in lists:
        answer = served.client.get(path, params=query(path, fields="nowhere"))
        assert answer.status_code == 400, path
        message = answer.json()["error"]["message"]
        assert message.startswith('fields: found "nowhere", expected some of '), path
    answer = served.client.get("/v1/jobs", params={"fields": "name,stat"})
    assert "attempts" in answer.json()["error"]["message"]
    assert "did you mean state or started?" in answer.json()["error"]["message"]
    assert served.client.get("/v1/jobs", params={"fields": ""}).status_code == 400


@pytest.mark.parametrize(
    ("path", "fields", "shown"),
    [
        ("/v1/jobs", "state", {"name", "run", "state"}),
        ("/v1/jobs", "owner, estimatedStart", {"name", "run", "owner", "estimatedStart"}),
        ("/v1/nodes", "capacity", {"name", "capacity"}),
        ("/v1/nodes", "name", {"name"}),
        ("/v1/events", "message", {"sequence", "message"}),
    ],
)
def test_items_have_what_is_asked_for_alone(
    served: parts.Served, path: str, fields: str, shown: set[str]
) -> None:
    whole = served.client.get(path).json()
    some = served.client.get(path, params={"fields": fields}).json()
    assert some["items"]
    assert some["items"] == [
        {name: value for name, value in one.items() if name in shown} for one in whole["items"]
    ]
    assert {name: some[name] for name in some if name not in {"items", "asOf"}} == {
        name: whole[name] for name in whole if name not in {"items", "asOf"}
    }


def test_attempts_come_if_they_are_asked_for(served: parts.Served) -> None:
    (one,) = served.client.get("/v1/jobs", params={"fields": "attempts"}).json()["items"]
    assert [attempt["task"] for attempt in one["attempts"]] == ["main-0"]


def test_each_choice_has_a_tag_of_its_own(served: parts.Served) -> None:
    few = served.client.get("/v1/jobs", params={"fields": "state"})
    tag = {"If-None-Match": few.headers["etag"]}
    again = served.client.get("/v1/jobs", params={"fields": "state"}, headers=tag)
    assert again.status_code == 304
    assert served.client.get("/v1/jobs", headers=tag).status_code == 200
