"""Bodies over a limit are refused by their length or number, before anything is done with each."""

import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.server import parts


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("bodies")
    repository = folder / "state.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(repository)], check=True)
    made = parts.Served(folder, "--repository", str(repository))
    try:
        yield made.ready()
    finally:
        made.close()


def names(count: int) -> list[str]:
    return [f"queue/q{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/changes", {"verb": "suspend", "names": names(180_000)}, 2 * 2**20),
        ("/v1/overrides", {"verb": "suspend", "names": names(180_000), "reason": "x"}, 2 * 2**20),
        ("/v1/jobs", {"names": names(400_000)}, 4 * 2**20),
        ("/v1/dry-runs", {"names": names(400_000)}, 4 * 2**20),
        ("/v1/adopt", {"names": names(400_000)}, 4 * 2**20),
    ],
)
def test_a_body_that_is_too_large_is_refused_with_the_limit(
    served: parts.Served, path: str, body: dict[str, Any], limit: int
) -> None:
    answer = served.client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "TooLarge")
    assert error["message"] == f"the body is too large: expected at most {limit} bytes"


@pytest.mark.parametrize(("path", "most"), [("/v1/changes", 5000), ("/v1/overrides", 1000)])
def test_names_are_counted_before_each_is_looked_at(
    served: parts.Served, path: str, most: int
) -> None:
    body = {"verb": "suspend", "names": ["no such form"] * (most + 1), "reason": "x"}
    answer = served.client.post(path, json=body)
    told = f"names: found {most + 1}, expected 1 to {most}, each once"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, told)


def test_a_document_with_too_many_values_is_refused(served: parts.Served) -> None:
    job = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  command: [id]\n"
    text = job + "  environment:\n" + "".join(f"    A{n}: 'x'\n" for n in range(20_000))
    answer = served.client.post(
        "/v1/dry-runs", content=text, headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 400
    assert "Job/a has more than 10000 fields and values" in answer.json()["error"]["message"]
