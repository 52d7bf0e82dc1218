"""Whom somebody believes who adopts what nodes report without a proof."""

import pytest

from reconciler.model.state import adoption_state

A, B = "a.1.x.0.main.0.1", "b.1.x.0.main.0.1"


def reported(*found: tuple[str, str, str]) -> adoption_state.AdoptionState:
    shown = (
        adoption_state.ShownUnproven(name, node, "Running", doubt) for name, node, doubt in found
    )
    return adoption_state.AdoptionState(pending=True, known=True, unproven=tuple(shown))


PLAIN = reported((A, "n1", ""), (B, "n2", ""))
DOUBTED = reported((A, "n1", ""), (B, "n2", "n2 is not in pool p"))
TWICE = reported((A, "n1", ""), (A, "n2", ""), (B, "n3", ""))


@pytest.mark.parametrize(
    ("state", "trust", "nodes"),
    [
        (reported(), "", set()),
        (reported(), "all", set()),
        (reported(), "none", set()),
        (PLAIN, "none", set()),
        (PLAIN, "all", {"n1", "n2"}),
        (PLAIN, "n2", {"n2"}),
        (DOUBTED, "n[1-2]", {"n1", "n2"}),  # somebody knows better
        (DOUBTED, "n1", {"n1"}),
        (TWICE, "n2,n3", {"n2", "n3"}),
        (TWICE, "none", set()),
    ],
)
def test_who_is_believed(state: adoption_state.AdoptionState, trust: str, nodes: set[str]) -> None:
    assert adoption_state.trusted_nodes(state, trust) == nodes


@pytest.mark.parametrize(
    ("state", "trust", "why"),
    [
        (PLAIN, "", "To fix: say which nodes to believe, --trust all, --trust none or --trust n1"),
        (DOUBTED, "all", f"n2 reports {B}, but n2 is not in pool p. To fix: name the nodes"),
        (TWICE, "all", f"n2 reports {A}, but n1 reports it too. To fix: name the nodes"),
        (TWICE, "n[1-2]", "n1 reports it too"),
        (reported((A, "n1", ""), (A[:-1] + "2", "n2", "")), "all", "n1 reports it too"),
        (PLAIN, "n[1-3]", 'found "n3", expected nodes that report tasks without a proof: n1,n2'),
        (reported(), "n1", "expected nodes that report tasks without a proof: there are none"),
        (PLAIN, "n[1-", "--trust"),
    ],
)
def test_what_does_not_say_whom_to_believe_says_how_to(
    state: adoption_state.AdoptionState, trust: str, why: str
) -> None:
    with pytest.raises(adoption_state.DistrustError) as refused:
        adoption_state.trusted_nodes(state, trust)
    assert str(refused.value).startswith("nothing was adopted: ")
    assert why in str(refused.value)
