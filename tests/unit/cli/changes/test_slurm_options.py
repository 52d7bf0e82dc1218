"""Slurm's names of options: taken where they mean the same, and left to the hints elsewhere."""

import click
import pytest
import yaml

from reconciler.cli import main
from reconciler.cli.changes import slurm_options

OPTIONS = main.application("submit").commands["submit"].params


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-p a --hold --job-name=b x -p c", "--queue a --hold --name b x -p c"),
        ("--ntasks 4 --cpus-per-task=2 -- --mem 1", "--tasks 4 --cpus 2 -- --mem 1"),
        ("--gres=gpu:2 --mem 4G x", "--gpus 2 --memory 4Gi x"),
        ("--mem=100 x", "--memory 100Mi x"),
        ("--output a --error=b x", "--output-file a --error-file b x"),
        ("-o a -D b -b 2h x", "--output-file a --chdir b --begin 2h x"),
        ("--dependency=afterok:a x", "--depends afterok:a x"),
        (
            "-d afterok:a:b,AfterAny:c x",
            "--depends afterok:a --depends afterok:b --depends afterany:c x",
        ),
        # dependencies that can't be said here
        ("--dependency=singleton x", "--dependency=singleton x"),
        ("-d afterok:a?afterok:b x", "-d afterok:a?afterok:b x"),
        ("-d after:a+5 x", "-d after:a+5 x"),
        ("-d afterok: x", "-d afterok: x"),
        # amounts of a node, a model, and values that are no options
        ("-n 4 --gres=gpu:2 --mem 4G x", "-n 4 --gres=gpu:2 --mem 4G x"),
        ("-n4 --mem 4G x", "-n4 --mem 4G x"),
        ("-N2 --ntasks-per-node=2 --mem 4G x", "-N2 --tasks-per-node 2 --mem 4G x"),
        ("--hold --mem 4G --tasks=2 x", "--hold --mem 4G --tasks=2 x"),
        # options of the job's own command, and values
        ("--gres=gpu:2 -- mpirun -np 4 ./x", "--gpus 2 -- mpirun -np 4 ./x"),
        ("--mem=4G ./run.sh -name x", "--memory 4Gi ./run.sh -name x"),
        ("--name -n4 --mem 4G x", "--name -n4 --memory 4Gi x"),
        ("--gres=gpu:a100:2 x", "--gres=gpu:a100:2 x"),
        ("--queue --mem x", "--queue --mem x"),
        ("-q=--mem --partition", "-q=--mem --partition"),
        ("--account a x", "--account a x"),
        ("-t1h --mem 1G x", "-t1h --memory 1Gi x"),
        ("-", "-"),
    ],
)
def test_names_of_slurm(words: str, expected: str) -> None:
    assert slurm_options.translated(words.split(), OPTIONS) == expected.split()


def test_an_option_that_a_command_does_not_have_is_left_to_the_hints() -> None:
    few = [click.Option(["--queue", "-q"])]
    words = ["-p", "a", "--dependency", "afterok:x", "y"]
    assert slurm_options.translated(words, few) == ["--queue", "a", *words[2:]]


def test_they_are_taken_and_named(
    starter: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(starter))
    words = ["--dry-run", "--partition", "default", "--mem=1G", "--", "true", "--mem"]
    main.application("submit").main(["submit", *words], prog_name="muster", standalone_mode=False)
    said = capsys.readouterr()
    spec = yaml.safe_load(said.out)["spec"]
    assert (spec["queue"], spec["resources"]["memory"]) == ("default", "1Gi")
    assert spec["command"] == ["true", "--mem"]
    assert "--partition is --queue here; --mem is --memory here" in said.err


@pytest.mark.parametrize("command", ["submit", "run"])
def test_every_name_is_one_of_an_option_here(command: str) -> None:
    found = main.application(command).commands[command]
    there = {name for one in found.params for name in one.opts}
    lines = ["-p a --job-name b --ntasks 2 --cpus-per-task 2 --output o --error e", "--gres gpu:1"]
    lines += ["--gpus-per-node 1 --gpus-per-task 1 --mem 1G"]
    for line in lines:
        made = slurm_options.translated(line.split(), found.params)[::2]
        assert set(made) <= there
