"""What is wrong between a person and the cluster is found, and told with what to do."""

import msgspec
import pytest

from reconciler.operations.doctor import examination

ADA = {
    "name": "ada@x.org",
    "isListed": True,
    "groups": [],
    "roles": ["researchers"],
    "unixUser": "ada",
    "signs": True,
    "verification": "off",
}
ANSWER = {"identity": ADA, "role": "user", "expiresAt": None, "version": "1", "ready": True}
RESTORED = {"pending": True, "blocked": "", "why": "the store was restored from a copy"}
SECOND = {
    "pending": True,
    "leads": False,
    "blocked": "nothing can be adopted yet: the controller on h1 leads with another store",
    "why": "another store led last, on h1",
}
WELL = examination.DoctorFacts(
    url="https://c:7420",
    source="by muster login",
    answer=ANSWER,
    nodes=({"state": "Ready"}, {"state": "Draining"}),
    git_email="ada@x.org",
    python="/home/ada/venv",
    version="1",
)
NOWHERE = msgspec.structs.replace(WELL, url="", answer=None, nodes=())


def _answered(**changes: object) -> examination.DoctorFacts:
    return msgspec.structs.replace(WELL, answer={**ANSWER, **changes})


def _of(**changes: object) -> examination.DoctorFacts:
    return _answered(identity={**ADA, **changes})


def _seen(**changes: object) -> examination.DoctorFacts:
    return msgspec.structs.replace(WELL, **changes)


@pytest.mark.parametrize(
    ("seen", "verdict", "part", "says"),
    [
        (NOWHERE, "wrong", "controller", "muster login URL"),
        (
            msgspec.structs.replace(NOWHERE, url="http://c", problem="can't be reached"),
            "wrong",
            "controller",
            "can't be reached",
        ),
        (_answered(ready=False), "wrong", "controller", "it leads no cluster yet"),
        (_answered(version="2"), "note", "controller", "muster-cluster==2"),
        (_seen(token_problem="no valid token", answer=None), "wrong", "token", "no valid token"),
        (_seen(ends_in_s=86_400.0), "note", "token", "it ends at"),
        (_seen(skew_s=61.0), "wrong", "clock", "61 s ahead of"),
        (_seen(skew_s=-61.0), "wrong", "clock", "61 s behind"),
        (_seen(nodes=()), "wrong", "nodes", "no node has joined yet"),
        (
            _seen(adoption=SECOND),
            "wrong",
            "controller",
            "does not lead; the controller on h1 leads",
        ),
        (_seen(adoption=RESTORED), "note", "controller", "jobs of before wait; the store was"),
        (_seen(nodes=({"state": "Lost"},)), "wrong", "nodes", "1 Lost: none takes work"),
        (_of(isListed=False), "note", "access", "does not list ada@x.org"),
        (_seen(git_email=None), "note", "git", "git config --global user.email"),
        (_seen(git_email="a@y.org"), "note", "git", "commits are by a@y.org"),
        (_of(verification="required", signs=False), "note", "git", "lists no key of yours"),
        (_of(verification="required"), "note", "git", "commit.gpgsign true"),
        (_seen(python=None), "note", "python", "none is active"),
        (_seen(python=None, is_own_python=True), "note", "python", "Muster's own"),
    ],
)
def test_each_fault_is_told_once_with_what_to_do(
    seen: examination.DoctorFacts, verdict: examination.Verdict, part: str, says: str
) -> None:
    lines = examination.examine(seen)
    (found,) = [one for one in lines if one.verdict != "ok" and one.part == part]
    assert found.verdict == verdict == examination.worst(lines)
    assert says in f"{found.text} {found.to_fix}"
    assert found.to_fix
    assert {one.part for one in lines if one.verdict == "wrong"} <= {part}


def test_where_all_is_well_nothing_is_to_do() -> None:
    lines = examination.examine(WELL)
    assert examination.worst(lines) == "ok"
    assert [one.part for one in lines] == [
        *("controller", "token", "clock", "nodes", "access", "git", "python"),
    ]
    assert not any(one.to_fix for one in lines)


def test_at_a_controller_that_does_not_lead_no_node_is_missing() -> None:
    """Nodes report to the one that leads: to start an agent here would be wrong."""
    lines = examination.examine(_seen(adoption=SECOND, nodes=()))
    wrong = [(one.part, one.to_fix) for one in lines if one.verdict == "wrong"]
    assert [part for part, _ in wrong] == ["controller"]
    assert "muster login URL of the controller that leads" in wrong[0][1]
    assert not any("agent" in one.to_fix for one in lines)
