"""Commands around jobs as a pool writes them: what is refused, and why."""

from typing import Any

import msgspec
import pytest

from reconciler.desired.apply import structure
from reconciler.desired.documents import document_reader
from reconciler.model import desired
from reconciler.model.observed.job_commands import JobCommand

GOOD = {"name": "scrub", "command": ["/opt/scrub"]}


def built(**spec: Any) -> tuple[desired.Structure | None, list[tuple[str, str]]]:
    """Return a structure with one pool, and its faults as rule and place."""
    document = {
        "apiVersion": "muster/v1",
        "kind": "NodePool",
        "metadata": {"name": "p"},
        "spec": {"hosts": "n1", "nodes": {"cpu": 4, "memory": "8Gi"}, **spec},
    }
    read = document_reader.read(msgspec.json.encode(document)).documents
    basis, noted = structure.build([structure.Placed("p.yaml", one) for one in read])
    made = basis.structure if basis is not None else None
    return made, [(fault.rule, ".".join(map(str, fault.path))) for _, fault in noted]


def test_commands_are_what_was_written_with_defaults() -> None:
    after = {"name": "log", "command": ["/l", "x"], "timeout": "1h", "runAs": "user"}
    made, faults = built(beforeJob=[GOOD], afterJob=[after])
    assert made is not None
    assert faults == []
    pool = made.pools["p"]
    assert pool.before_job == (JobCommand("scrub", ("/opt/scrub",), 60.0, "agent"),)
    assert pool.after_job == (JobCommand("log", ("/l", "x"), 3600.0, "user"),)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"beforeJob": [GOOD, GOOD]}, ("duplicate-check", "spec.beforeJob.1.name")),
        (
            {"beforeJob": [GOOD], "afterJob": [GOOD]},
            ("duplicate-check", "spec.afterJob.0.name"),
        ),
        (
            {"afterJob": [GOOD], "health": {"commands": [{"name": "scrub", "command": ["x"]}]}},
            ("duplicate-check", "spec.afterJob.0.name"),
        ),
        ({"afterJob": [{**GOOD, "name": "clock"}]}, ("duplicate-check", "spec.afterJob.0.name")),
        (
            {"afterJob": [{**GOOD, "command": ["scrub"]}]},
            ("job-command-path", "spec.afterJob.0.command.0"),
        ),
        (
            {"afterJob": [{**GOOD, "timeout": "61m"}]},
            ("job-command-timeout", "spec.afterJob.0.timeout"),
        ),
        (
            {"beforeJob": [{**GOOD, "timeout": "0s"}]},
            ("job-command-timeout", "spec.beforeJob.0.timeout"),
        ),
    ],
)
def test_what_can_not_run_is_refused(spec: dict[str, Any], fault: tuple[str, str]) -> None:
    assert built(**spec) == (None, [fault])


def test_a_remedy_may_name_a_command() -> None:
    remedy = {"check": "scrub", "action": "restart-agent"}
    made, faults = built(afterJob=[GOOD], health={"remedies": [remedy]})
    assert made is not None
    assert faults == []
    assert built(health={"remedies": [remedy]})[1][0][0] == "remedy-of-no-check"
    of_the_user = {**GOOD, "runAs": "user"}  # whose failure says nothing of the node
    _, faults = built(afterJob=[of_the_user], health={"remedies": [remedy]})
    assert faults[0][0] == "remedy-of-no-check"
