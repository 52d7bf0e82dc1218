"""What ``muster access can`` answers: yes and no for each verb, and for each kind."""

from pathlib import Path

import pytest

from reconciler.cli import main
from reconciler.desired.apply import validate
from reconciler.model.documents import kinds
from reconciler.operations import permission_check

ACCESS = """\
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec:
  identities:
    - {email: ada@x.org, keys: []}
    - {email: bob@x.org, groups: [research], keys: []}
    - {email: eve@x.org, keys: []}
  roles:
    - name: everything
      members: [ada@x.org]
      allow:
        - {verbs: [change, drain, approve, snapshot], objects: ["*"]}
        - {verbs: [manage], queues: ["*"]}
    - name: some
      members: ["group:research"]
      allow:
        - {verbs: [submit], queues: [research]}
        - {verbs: [manage], queues: [vision]}
        - {verbs: [read], queues: [ops]}
        - {verbs: [drain], objects: [NodePool/a]}
        - {verbs: [change], objects: [Quota, Queue/vision]}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: vision}
spec: {parent: research}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: ops}
"""
ADA, BOB, EVE, NOBODY = "ada@x.org", "bob@x.org", "eve@x.org", "mallory@x.org"
YES, NO = True, False


@pytest.mark.parametrize(
    ("verb", "subject", "ada", "bob", "eve"),
    [
        ("submit", "Queue/research", YES, YES, NO),
        ("submit", "Queue/vision", YES, YES, NO),  # by that for the queue above it
        ("submit", "Queue/ops", YES, NO, NO),  # ada by manage
        ("manage", "Queue/research", YES, NO, NO),
        ("manage", "Queue/vision", YES, YES, NO),
        ("read", "Queue/research", YES, NO, NO),  # of everybody's jobs: to submit is not enough
        ("read", "Queue/vision", YES, YES, NO),  # by manage
        ("read", "Queue/ops", YES, YES, NO),
        ("drain", "NodePool/a", YES, YES, NO),
        ("drain", "NodePool/b", YES, NO, NO),
        ("change", "NodePool/a", YES, NO, NO),
        ("change", "Quota/any", YES, YES, NO),
        ("change", "Queue/vision", YES, YES, NO),
        ("change", "Queue/research", YES, NO, NO),
        ("approve", "", YES, NO, NO),
        ("snapshot", "", YES, NO, NO),
    ],
)
def test_each_verb(verb: str, subject: str, *, ada: bool, bob: bool, eve: bool) -> None:
    structure = validate.check({"a.yaml": ACCESS.encode()}).structure
    for who, expected in ((ADA, ada), (BOB, bob), (EVE, eve), (NOBODY, NO)):
        found = permission_check.can(structure, who, verb, subject)
        assert found.allowed is expected, (who, found.why)
        if expected:
            assert found.why.startswith(f"the role {'everything' if who == ADA else 'some'} ")
        elif who == NOBODY:
            assert found.why == "mallory@x.org is not an identity in Access"
        else:
            assert found.why.startswith(f"no role of {who} allows {verb} on ")


@pytest.mark.parametrize("kind", sorted(kinds.STRUCTURAL_KINDS))
def test_each_kind(kind: str) -> None:
    """A rule for a kind is about that one and about no other."""
    text = ACCESS.replace("objects: [Quota, Queue/vision]", f"objects: [{kind}]")
    structure = validate.check({"a.yaml": text.encode()}).structure
    for other in sorted(kinds.STRUCTURAL_KINDS):
        for who, expected in ((ADA, YES), (BOB, other == kind), (EVE, NO)):
            assert permission_check.can(structure, who, "change", f"{other}/x").allowed is expected


@pytest.mark.parametrize(
    ("who", "status", "said"),
    [
        (BOB, 0, "yes: the role some allows submit on Queue/vision"),
        (
            EVE,
            3,
            "no: no role of eve@x.org allows submit on Queue/vision (roles of eve@x.org: none)",
        ),
    ],
)
def test_the_command_says_yes_or_no_and_exits_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], who: str, status: int, said: str
) -> None:
    (tmp_path / "access.yaml").write_text(ACCESS)
    asked = ["access", "can", who, "submit", "Queue/vision", "--folder", str(tmp_path)]
    application = main.application(asked[0])
    assert application.main(asked, prog_name="muster", standalone_mode=False) == status
    assert capsys.readouterr().out == f"{said}\n"


def test_roles_are_those_of_the_cluster_wherever_in_it_somebody_stands(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the folder of its jobs there are none, by which all may do all."""
    (work / "access.yaml").write_text(ACCESS)
    asked = ["access", "can", EVE, "submit", "Queue/vision"]
    application = main.application(asked[0])
    for folder in (work, work / "jobs"):
        monkeypatch.chdir(folder)
        assert application.main(asked, prog_name="muster", standalone_mode=False) == 3
        assert capsys.readouterr().out.startswith("no: ")


def test_where_no_desired_state_is_nobody_may_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["access", "can", BOB, "submit", "Queue/default"]
    application = main.application(asked[0])
    for more in ([], ["--folder", str(tmp_path)]):
        assert application.main([*asked, *more], prog_name="muster", standalone_mode=False) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert "--folder" in told.err or "holds no YAML" in told.err


@pytest.mark.parametrize(
    ("other", "answers"),
    [
        (("verbs: [submit]", "verbs: [all]"), False),
        (("metadata: {name: ops}\n", "metadata: {name: ops}\nspec: {no: 1}\n"), False),
        (("kind: Queue\nmetadata: {name: ops}", "kind: Job\nmetadata: {name: ops}"), True),
    ],
)
def test_roles_that_can_not_be_read_allow_nothing(
    tmp_path: Path,
    other: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    *,
    answers: bool,
) -> None:
    """Without this a typing error in them reads as roles that are not there: all may do all."""
    assert other[0] in ACCESS
    (tmp_path / "access.yaml").write_text(ACCESS.replace(*other))
    asked = ["access", "can", EVE, "change", "Queue/research", "--folder", str(tmp_path)]
    application = main.application(asked[0])
    status = application.main(asked, prog_name="muster", standalone_mode=False)
    told = capsys.readouterr()
    assert "everybody" not in told.out
    assert status == (3 if answers else 1)
    assert ("the structure here is refused: access.yaml:" in told.err) is not answers
