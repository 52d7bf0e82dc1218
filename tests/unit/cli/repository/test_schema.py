"""``muster schema``: the fields of a kind at the terminal."""

import json

import pytest

from reconciler.cli import main, terminal
from reconciler.desired.documents import schema
from reconciler.model.documents import kinds


def run(*words: str) -> int:
    made = main.application("schema").main(
        ["schema", *words], prog_name="muster", standalone_mode=False
    )
    return made if isinstance(made, int) else 0


def test_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == terminal.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(kinds.KINDS)


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ("job.resources.mig", ["mig", "mig.profile", "mig.count"]),
        ("Jobs.spec.resources.mig.count", ["mig.count"]),
    ],
)
def test_what_stands_below_a_field(
    asked: str, fields: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(asked) == terminal.DONE
    lines = capsys.readouterr().out.splitlines()
    heads = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert heads == [f"spec.resources.{field}" for field in fields]
    assert "`" not in "".join(lines)


@pytest.mark.parametrize(
    "kind", [kind for kind in kinds.KINDS if kind not in kinds.KINDS_NOT_BUILT]
)
def test_every_field_of_every_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(kind.lower()) == terminal.DONE
    said = capsys.readouterr().out
    spec = schema.of_kind(kind)["$defs"][f"{kind}Spec"]["properties"]
    for name, field in spec.items():
        assert (f"\nspec.{name}: " in said) is ("x-not-built" not in field)


def test_the_schema_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("queue", "-o", "json") == terminal.DONE
    assert json.loads(capsys.readouterr().out) == schema.of_kind("Queue")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("jobb", 'no kind named "jobb"; did you mean job?'),
        ("job.spek", "Job has no field spek; did you mean spec?"),
        ("job.spec.resorces", "did you mean spec.resources?"),
        ("job.priorty", "did you mean spec.priority?"),
        ("job.spec.resources.gpuu", "did you mean spec.resources.gpu?"),
        ("job.gpu", "Job has no field gpu; did you mean spec.resources.gpu?"),
    ],
)
def test_what_is_not_there(asked: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(asked) == terminal.USAGE
    assert told in " ".join(capsys.readouterr().err.split())
