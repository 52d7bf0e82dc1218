"""What the documentation shows works: examples, refusals, commands with their output, links."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reconciler.cli import main
from reconciler.desired.apply import validate
from reconciler.model import desired
from tests.unit.docs import pages
from tools import reference

Documents = dict[tuple[str, str], str]

WITH_YAML = [p for p in pages.pages() if any(b.language == "yaml" for b in pages.blocks(p))]
WITH_CONSOLE = [p for p in pages.pages() if any(b.language == "console" for b in pages.blocks(p))]


def judged(documents: Documents) -> tuple[desired.Problem, ...]:
    files = {f"{i:03}.yaml": text.encode() for i, text in enumerate(documents.values())}
    return validate.check(files).status.problems


def documents_of(block: pages.Block) -> Documents:
    """The documents of a block by kind and name."""
    found: Documents = {}
    for part in re.split(r"^---\n", block.text, flags=re.MULTILINE):
        value = yaml.safe_load(part)
        assert value["apiVersion"] == "muster/v1"
        found[value["kind"], value["metadata"]["name"]] = part
    return found


@pytest.mark.parametrize("page", WITH_YAML, ids=pages.name)
def test_examples_are_accepted_or_refused_as_told(page: Path) -> None:
    """A page's examples add up: each is judged beside the good ones before it."""
    known: Documents = {}
    for block in pages.blocks(page):
        if block.language != "yaml":
            continue
        where = f"{pages.name(page)}:{block.line}"
        try:
            proposed = known | documents_of(block)
        except yaml.YAMLError:
            proposed = known | {("Broken", "block"): block.text}
        found = judged(proposed)
        kind, told = block.mark
        if kind == "refused":
            errors = [p.text() for p in found if p.severity == "error"]
            assert any(told in text for text in errors), (where, errors)
        elif kind == "warned":
            assert [p.severity for p in found] == ["warning"], (where, found)
            assert told in found[0].text(), (where, found[0].text())
        else:
            assert found == (), (where, [problem.text() for problem in found])
            known = proposed


def pattern(expected: str) -> str:
    """A regular expression for output in which ``...`` stands for anything."""
    parts = [re.escape(part) for part in expected.strip().split("...")]
    return r".*?".join(parts)


class Session:
    """A person at a shell in an empty folder. ``muster`` runs in this process, the rest in bash."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._pwd = folder / "pwd"
        configuration = folder / "gitconfig"
        configuration.write_text("[user]\n  name = Ada\n  email = ada@example.org\n")
        work = folder / "work"
        work.mkdir()
        (work / "cluster-state").symlink_to(pages.ROOT / "cluster-state")
        (work / "scenarios").symlink_to(pages.ROOT / "tests" / "scenarios")
        monkeypatch.chdir(work)
        for name in [name for name in os.environ if name.startswith(("MUSTER_", "GIT_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
        monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")

    def run(self, command: str) -> str:
        """What a command prints, on stdout and stderr together."""
        words, shown, status = command.partition("; echo $?")
        if not words.startswith("muster "):
            return self._in_bash(command)
        self._monkeypatch.setattr(sys, "argv", shlex.split(words))
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            pytest.raises(SystemExit) as left,
        ):
            main.main()
        assert not status
        return printed.getvalue() + (f"{left.value.code}\n" if shown else "")

    def _in_bash(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"{{ {command}\n}} 2>&1; pwd > {self._pwd}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self._monkeypatch.chdir(self._pwd.read_text().strip())
        return done.stdout


@pytest.mark.parametrize("page", WITH_CONSOLE, ids=pages.name)
def test_commands_print_what_is_told(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console blocks of a page are one session in an empty folder."""
    session = Session(tmp_path, monkeypatch)
    for block in pages.blocks(page):
        if block.language != "console":
            continue
        for turn in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = turn.partition("\n")
            printed = session.run(command)
            where = f"{pages.name(page)}:{block.line}: $ {command}"
            assert re.fullmatch(pattern(expected), printed.strip(), re.DOTALL), (
                f"{where}\nprinted\n{printed}\nand not\n{expected}"
            )


@pytest.mark.parametrize("page", pages.pages(), ids=pages.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in pages.links(page):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", sorted((pages.ROOT / "docs").rglob("*.md")), ids=pages.name)
def test_every_page_is_in_the_index(page: Path) -> None:
    index = pages.ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in pages.links(index)}
    assert page == index or page in listed


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_is_current(name: str) -> None:
    path = reference.FOLDER / name
    assert path.read_text(encoding="utf-8") == reference.PAGES[name](), (
        "run `python -m tools.reference` and commit what it writes"
    )
