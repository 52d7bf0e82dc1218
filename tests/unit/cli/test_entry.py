"""The command on a node, where the packages of the command line are not installed."""

import os
import subprocess
import sys

import pytest

#: As the interpreter has it where a package is not there.
LOOK = """
import sys
sys.modules["typer"] = None
sys.argv = ["muster", *sys.argv[1:]]
from reconciler.cli import entry
entry.main()
"""


def muster(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOOK, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("words", [[], ["jobs"], ["version"], ["--help"]])
def test_what_is_missing_is_named_with_what_has_it(words: list[str]) -> None:
    done = muster(*words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("muster: package 'typer' is not installed")
    assert "pip install 'muster-cluster[controller]'" in done.stderr
    assert "muster-agent" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_agent_needs_no_command_line() -> None:
    done = muster("agent", "--help")
    assert done.returncode == 0, done.stderr
    assert "--server" in done.stdout


@pytest.mark.parametrize("verb", ["run", "submit", "job", "jobs", "plan", "no-such-verb"])
def test_arguments_that_are_no_text_are_named(verb: str) -> None:
    """Most commands ended with a traceback."""
    words = [os.fsencode(sys.executable), b"-P", b"-m", b"reconciler.cli.entry"]
    done = subprocess.run(
        [*words, verb.encode(), b"M\xfcller"], check=False, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (64, b"")
    first, fix = done.stderr.decode().splitlines()
    assert first == r"muster: argument 2 is not UTF-8: found M\xfcller"
    assert fix.startswith("  To fix: ")


def test_what_handles_interrupts_loads_nothing_before_it_does() -> None:
    """What the interpreter has loaded by then anyway, and ``signal``."""
    look = """
import sys
import __future__, collections.abc, os, signal, types
before = set(sys.modules)
from reconciler.cli import entry
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [
        *("reconciler", "reconciler.cli", "reconciler.cli.entry", "reconciler.cli.interrupts")
    ]
