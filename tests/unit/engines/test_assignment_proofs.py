"""Proofs of assignments: of one attempt on one node, by a key that counts."""

import pytest

from reconciler.engines import assignment_proofs

ONE = assignment_proofs.AssignmentProofs(b"1" * 32)
TWO = assignment_proofs.AssignmentProofs(b"2" * 32, [b"1" * 32])
NOBODY = assignment_proofs.AssignmentProofs()
ATTEMPT = "a.1.0123456789abcdef.0.main.0.1"


@pytest.mark.parametrize(
    ("proofs", "node", "attempt", "proof", "counts"),
    [
        (ONE, "n1", ATTEMPT, ONE.of(ATTEMPT, "n1"), True),
        (TWO, "n1", ATTEMPT, ONE.of(ATTEMPT, "n1"), True),
        (ONE, "n1", ATTEMPT, TWO.of(ATTEMPT, "n1"), False),
        (NOBODY, "n1", ATTEMPT, ONE.of(ATTEMPT, "n1"), False),
        (ONE, "n2", ATTEMPT, ONE.of(ATTEMPT, "n1"), False),
        (ONE, "n1", ATTEMPT[:-1] + "2", ONE.of(ATTEMPT, "n1"), False),
        (ONE, "n1", ATTEMPT, "", False),
        (ONE, "n1", ATTEMPT, ONE.of(ATTEMPT, "n1")[:-1], False),
        (ONE, "n1", ATTEMPT, "\N{SNOWMAN}" * 32, False),
    ],
)
def test_a_proof_is_of_one_attempt_on_one_node(
    *,
    proofs: assignment_proofs.AssignmentProofs,
    node: str,
    attempt: str,
    proof: str,
    counts: bool,
) -> None:
    other = {"b.1.x.0.main.0.1": "00"}
    assert proofs.proven(node, {attempt: proof, **other}) == ((attempt,) if counts else ())
