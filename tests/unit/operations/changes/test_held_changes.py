"""What is said of a commit that does not apply by itself."""

from typing import Any

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.operations.changes import held_changes
from reconciler.operations.views import job_views

OLD, HEAD, MADE = "a" * 40, "b" * 40, "c" * 40


def sync(**more: Any) -> dict[str, Any]:
    """What ``/v1/sync`` says."""
    told = {
        "sync": "Synced",
        "message": "",
        "attemptedRevision": HEAD,
        "structureRevision": HEAD,
        "jobsRevision": HEAD,
        "problems": [],
        "held": [],
    }
    return told | more


def rewritten(rule: str) -> dict[str, Any]:
    told = f"{HEAD} does not follow; --accept-revision {HEAD}"
    problem = {"rule": rule, "message": told}
    return sync(sync="OutOfSync", message=told, problems=[problem], jobsRevision=OLD)


@pytest.mark.parametrize("rule", sorted(review_findings.WHOLE))
def test_a_head_that_is_held_holds_what_follows_it(rule: str) -> None:
    told = held_changes.revision(rewritten(rule), MADE)
    assert told == f"{MADE} does not follow; --accept-revision {MADE}"
    assert HEAD in held_changes.revision(rewritten(rule))


@pytest.mark.parametrize(
    "told",
    [
        None,
        sync(),
        sync(sync="OutOfSync", problems=[{"rule": "unknown-queue", "message": "no"}]),
        rewritten("became-empty"),
    ],
)
def test_other_revisions_let_what_follows_apply(told: Any) -> None:
    assert held_changes.revision(told, MADE) == ""


def test_what_follows_an_emptied_revision_waits_with_it() -> None:
    told = held_changes.emptied(rewritten(review_findings.EMPTIED))
    assert told.startswith("nor does what follows it: ")
    assert HEAD in told
    assert [held_changes.emptied(one) for one in (None, sync())] == ["", ""]


def test_a_repository_that_cannot_be_read_is_said_of() -> None:
    told = sync(sync="Unknown", message="no route")
    assert held_changes.revision(told, MADE) == "the controller can't read git now: no route"


def test_structure_is_held_or_refused_by_itself() -> None:
    assert held_changes.structure(sync()) == ""
    assert held_changes.structure(None) == ""
    assert held_changes.structure(sync(held=[{"part": "removal"}])) == ""
    told = held_changes.structure(sync(held=[{"part": "structure"}]))
    assert " is held, " in told
    assert "`git revert COMMIT`" in told, "also where no approval lifts it"
    assert held_changes.structure(sync(structureRevision=OLD)) == "", "what is right applies"
    assert " is refused, " in held_changes.structure(sync(structureRevision=None))


def test_what_is_asked_for_is_what_the_api_says() -> None:
    shown = msgspec.to_builtins(job_views.sync_view(desired.SyncStatus()))
    assert sync().keys() <= shown.keys()


def test_a_problem_without_a_place_begins_with_what_it_is() -> None:
    assert desired.Problem("r", "error", "", "it is so").text() == "error: it is so"
    placed = desired.Problem("r", "error", "a.yaml", "it is so", line=2, column=3)
    assert placed.text() == "a.yaml:2:3: error: it is so"


S, R, OTHER = "s" + "a" * 26, "r" + "b" * 26, "s" + "c" * 26


@pytest.mark.parametrize(
    ("digest", "held", "same"),
    [
        (f"{S}j0h0", f"{S}j2h15", True),
        (f"{S}{R}j0h0", f"{S}j0h0", True),
        (f"{S}{R}j0h0", f"{R}j1h0", True),
        (f"{R}j0h0", f"{S}{R}j0h0", True),
        (f"{S}j0h0", f"{OTHER}j0h0", False),
        (f"{S}j0h0", f"{R}j0h0", False),
        (f"{S}j0h0", "", False),
        ("", "", False),
    ],
)
def test_what_of_a_digest_names_the_change(digest: str, held: str, same: bool) -> None:
    assert held_changes.is_of(digest, held) is same


def test_an_approval_that_lets_nothing_apply_is_told() -> None:
    told = sync(held=[{"digest": f"{S}j0h0", "message": ""}])
    for digest in (f"{S}j0h0", f"{S}j3h0", f"{S}{R}j0h0"):
        assert held_changes.approval(told, digest).startswith(f"{digest} is still held: the signer")
    assert held_changes.approval(told, f"{OTHER}j0h0") == ""
    assert held_changes.approval(None, f"{S}j0h0") == ""


def test_an_approval_of_less_than_the_change_ends_by_now_says_what_covers_it() -> None:
    told = sync(held=[{"digest": "", "message": ""}, {"digest": f"{S}j4h2", "message": ""}])
    assert held_changes.approval(told, f"{S}j1h2") == (
        f"the change now ends more running work than {S}j1h2 covers. To fix: "
        f"`muster approve {S}j4h2`"
    )


def test_an_approval_of_what_muster_fails_over_is_not_called_one_of_who_may_not() -> None:
    digest = f"{S}j0h0"
    defect = {"rule": "defect", "object": "", "message": "an internal error kept it"}
    of_job = {**defect, "object": "Job/a"}
    told = sync(held=[{"digest": digest, "message": ""}], problems=[of_job, defect])
    assert (
        held_changes.approval(told, digest) == f"{digest} is still held: an internal error kept it"
    )
    assert "the signer of" in held_changes.approval({**told, "problems": [of_job]}, digest)
