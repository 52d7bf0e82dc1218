"""Whatever is sent, the answer is one that the schema has: no crash, no surprise."""

import pathlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis

from reconciler.model.state.states import AttemptState
from tests.integration.server import parts
from tests.unit.store import samples

#: What is refused on purpose, beside what the schema says of an operation.
NOT_BUILT = {501, 503}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    """A server with a job, an attempt and a node."""
    folder: pathlib.Path = tmp_path_factory.mktemp("api")
    made = parts.Served(folder)
    try:
        train = samples.job(elements=2)
        made.ready().commit(
            jobs=(train,),
            attempts=(samples.attempt(train, state=AttemptState.ENDED),),
            nodes=(samples.node(),),
            events=(samples.event("x", job="train"),),
        )
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def described(api: parts.Served) -> Any:
    """What the server says of itself."""
    return schemathesis.openapi.from_url(f"{api.address}/schema/openapi.json", headers=parts.ADMIN)


schemathesis.checks.load_all_checks()
CHECKS: Any = [
    schemathesis.checks.CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "response_schema_conformance",
        "status_code_conformance",
        "content_type_conformance",
    )
]


def test_answers_are_as_the_schema_says(described: Any) -> None:
    for found in described.get_all_operations():
        operation = found.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=20,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def send(case: Any) -> None:
            case.query.pop("wait_s", None)  # it would wait
            case.query.pop("follow", None)
            response = case.call(timeout=parts.PATIENCE_S)
            if response.status_code not in NOT_BUILT:
                case.validate_response(response, checks=CHECKS)

        send()
