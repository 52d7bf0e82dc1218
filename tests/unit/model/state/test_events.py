"""Everything that happens is told in words, also where nothing is to be said but its kind."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler import core
from reconciler.model.state import events, states

_CORE = Path(core.__file__).parent
#: How the two places call what they note that take a message which may be empty.
_OF_STATES = {"Job": states.JobState, "Node": states.NodeState}


def _noted() -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Where in the core something is noted, under which kind, with which message."""
    for path in sorted(_CORE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("events.add"):
                kind, message = node.args[:2]
                yield f"{path.name}:{node.lineno}", kind, message


@pytest.mark.parametrize(
    "kind",
    [f"{prefix}{one.value}" for prefix, kinds in _OF_STATES.items() for one in kinds],
)
def test_every_state_has_a_sentence_of_its_own(kind: str) -> None:
    said = events.words(events.Event(1.0, kind, ""))
    assert said == events.SENTENCES[kind]
    assert len(said.split()) >= 3
    assert list(events.SENTENCES.values()).count(said) == 1
    assert events.words(events.Event(1.0, kind, "because")) == "because"


def test_no_other_kind_comes_without_words() -> None:
    """A kind made of a state is in the table; a message of any other is written where it is noted.

    Such a message is text with something in it, whatever is put in between.
    """
    noted = list(_noted())
    assert len(noted) > 30
    wordless = []
    for place, kind, message in noted:
        if isinstance(kind, ast.JoinedStr):
            prefix = kind.values[0]
            assert isinstance(prefix, ast.Constant)
            if prefix.value in _OF_STATES:
                continue
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        texts = [one.value for one in parts if isinstance(one, ast.Constant)]
        if not any(texts) and isinstance(message, ast.JoinedStr | ast.Constant):
            wordless.append(place)
    assert wordless == []


def test_the_table_names_no_kind_that_there_is_not() -> None:
    kinds = {f"{prefix}{one.value}" for prefix, kinds in _OF_STATES.items() for one in kinds}
    assert set(events.SENTENCES) == kinds
