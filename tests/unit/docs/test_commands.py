"""Commands that pages name in their text are there, with the options that are told.

What stands in blocks is run by others; what stands in a sentence is what a person types at night.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from agents import settings
from reconciler.cli import main
from reconciler.controller import controller_options
from tests.unit.docs import pages

NAMED = re.compile(r"`(muster [a-z][^`]*)`")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ROOT: Any = main.application()
#: Commands that read their own options.
OWN = {"agent": settings.parser(), "controller": controller_options.parser()}


def wrong(text: str) -> str:
    """What of a command line is not there; empty where all of it is."""
    command = ROOT
    for word in shlex.split(text)[1:]:
        if word == "--":
            break
        if word.startswith("-"):
            options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
            if command.name in OWN:
                options.update(re.findall(r"--?[a-z][a-z-]*", OWN[command.name].format_help()))
            if word.partition("=")[0] not in options | {"-h", "--help", "--version"}:
                return word
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return word
            command = command.commands[word]
    return ""


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name)
def test_commands_in_the_text_are_there(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    named = [" ".join(found.split()) for found in NAMED.findall(text)]
    assert [(line, wrong(line)) for line in named if wrong(line)] == []


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("muster pools", "pools"),
        ("muster events --type RemediationGivenUp", "--type"),
        ("muster drift --kind gpu-failed -o wide", ""),
        ("muster run --gpus 1 -- sleep --forever", ""),
    ],
)
def test_what_is_not_there_is_found(line: str, lacks: str) -> None:
    assert wrong(line) == lacks
