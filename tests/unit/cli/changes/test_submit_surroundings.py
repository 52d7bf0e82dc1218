"""Variables of a job come from options; what looks like a secret never gets into git."""

import pytest

from reconciler.cli.changes import submit_surroundings

HERE = {"A": "1", "WANDB_API_KEY": "x", "B": "b,c", "BAD": "\udcff"}


def test_options_say_it_later_than_the_shell() -> None:
    problems: list[str] = []
    found = submit_surroundings.variables(["A=2", "C="], ["A,B"], HERE, problems)
    assert found == {"A": "2", "B": "b,c", "C": ""}
    assert problems == []


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "MY_SECRET_X", "DB_PASSWORD", "db_password", "TOKEN", "APIKEY"],
)
@pytest.mark.parametrize("option", ["--env", "--export"])
def test_secrets_are_refused_with_the_way_to_keep_them(name: str, option: str) -> None:
    env, export = ([f"{name}=hush"], None) if option == "--env" else (None, [name])
    problems: list[str] = []
    assert submit_surroundings.variables(env, export, {name: "hush"}, problems) == {}
    (told,) = problems
    assert "hush" not in told
    assert "`secrets`" in told


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY", "AWS_ACCESS_KEY_ID", "TOKENS"]
)
def test_names_that_only_sound_alike_are_none(name: str) -> None:
    assert not submit_surroundings.is_secret(name)


@pytest.mark.parametrize(
    ("env", "export", "told"),
    [
        (["A"], None, "expected NAME=VALUE. For the value that it has here: --export A"),
        (["1A=x"], None, "expected the name of a variable"),
        (None, ["NOPE"], "NOPE is not set here"),
        (None, ["ALL"], "name each variable"),
        (None, ["BAD"], "not UTF-8"),
    ],
)
def test_wrong_options_say_what_to_write(
    env: list[str] | None,
    export: list[str] | None,
    told: str,
) -> None:
    problems: list[str] = []
    assert submit_surroundings.variables(env, export, HERE, problems) == {}
    (problem,) = problems
    assert told in problem
