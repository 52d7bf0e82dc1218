"""Questions about a run by its key: who may know that there was one, and which number is free."""

import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import records
from reconciler.model.state.states import JobState
from reconciler.operations.changes import previous_runs, rerun_edit
from reconciler.operations.client import endpoints
from reconciler.operations.tokens import token_file
from reconciler.operations.views import stored_views
from tests.integration.server import parts
from tests.unit.store import samples

WHO = {"ada": "user", "bob": "user", "eve": "user", "lead": "user", "root": "admin"}
#: Runs whose records are gone: of a name that ada has, and of one that nobody has any more.
OF_ADA, OF_NOBODY = "train.1.fedcba9876543210", "gone.1.fedcba9876543210"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    """A server with a job of ada's, who may submit jobs; so may bob, and lead may read hers."""
    folder: pathlib.Path = tmp_path_factory.mktemp("forgotten")
    path = folder / "people"
    lines = [token_file.line_of(who, f"{who}@x.org", role).text() for who, role in WHO.items()]
    token_file.write_private(path, token_file.joined([*lines, "the-test local admin"]))
    made = parts.Served(folder, "--token-file", str(path))
    submit = access.AccessRule(("submit",), queues=("default",))
    read = access.AccessRule(("read",), queues=("default",))
    known = access.Access(
        {f"{who}@x.org": access.Identity(f"{who}@x.org") for who in WHO},
        (
            access.Role("people", ("ada@x.org", "bob@x.org"), (submit,)),
            access.Role("leads", ("lead@x.org",), (read,)),
        ),
    )
    structure = desired.Structure(queues={"default": desired.Queue("default")}, access=known)
    status = desired.SyncStatus("Synced", "abc", "abc", "abc")
    try:
        made.ready().commit(
            views=stored_views.desired_views(desired.Desired(structure=structure, status=status)),
            jobs=(samples.job("train", run=2, owner="ada@x.org", state=JobState.FAILED),),
            new_runs=(OF_ADA, OF_NOBODY),
        )
        yield made
    finally:
        made.close()


def ask(served: parts.Served, who: str, name: str, key: str) -> httpx.Response:
    """Ask for a run by its key."""
    headers = {"Authorization": f"Bearer {who}"}
    return served.client.get(f"/v1/jobs/{name}", params={"key": key}, headers=headers)


@pytest.mark.parametrize(
    ("key", "knowing"),
    [(OF_ADA, {"ada", "lead", "root"}), (OF_NOBODY, {"ada", "bob", "root"})],
)
def test_only_who_has_the_right_learns_that_a_run_was_there(
    served: parts.Served, key: str, knowing: set[str]
) -> None:
    name, other = key.split(".", maxsplit=1)[0], key[:-1] + "1"
    for who in WHO:
        found = ask(served, who, name, key)
        assert found.status_code == (410 if who in knowing else 404), who
        never = ask(served, who, name, other)
        assert never.status_code == 404
        if who not in knowing:
            told = found.json()["error"]["message"]
            assert told == never.json()["error"]["message"].replace(other, key), who


def test_a_number_that_is_taken_is_not_proposed(
    tmp_path: pathlib.Path, served: parts.Served
) -> None:
    """The newest run is not the one of the highest number: a clone says what a push would say."""
    name = "back"
    document: dict[str, Any] = {"kind": "Job", "metadata": {"name": name}, "spec": {"run": 1}}
    digest = rerun_edit.run_key(document).rsplit(".", 1)[1]

    def run(number: int, order: int) -> records.JobRecord:
        made = samples.job(name, run=number, order=order, owner="ada@x.org", state=JobState.FAILED)
        return msgspec.structs.replace(
            made,
            spec=msgspec.structs.replace(made.spec, hash=digest if number == 1 else f"{number}"),
        )

    token = tmp_path / "token"
    token_file.write_private(token, "root")
    endpoint = endpoints.Endpoint(served.address, str(token))
    for jobs in ((run(1, 10),), (run(7, 11),), (run(3, 12),)):
        served.commit(jobs=jobs, new_runs=tuple(one.key for one in jobs))
    told = previous_runs.SpentRuns(endpoint)(document)
    assert "is Failed already" in told
    assert "spec.run: 8 (--set run=8)" in told
    earlier = {**document, "spec": {"run": 2}}
    served.commit(new_runs=(rerun_edit.run_key(earlier),))
    told = previous_runs.SpentRuns(endpoint)(earlier)
    assert "is over already" in told
    assert "spec.run: 8 (--set run=8)" in told
