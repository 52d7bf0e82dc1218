"""What a command costs before it begins: heavy modules are left alone until they are needed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli import main, value_names

#: What light commands have no use for.
HEAVY = (
    *("numpy", "sqlalchemy", "litestar", "git", "ruamel", "jsonschema", "yaml", "uvicorn"),
    "pydantic",
)
LOOK = """
import sys
from reconciler.cli import main, value_names
try:
    main.main()
finally:
    print("\\nLOADED", *sorted({name.partition(".")[0] for name in sys.modules}))
    print("\\nOURS", *sorted(name for name in sys.modules if name.startswith("reconciler.cli.")))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with what it has loaded in the end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")}
    return subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "also"),
    [
        (["--help"], ("httpx",)),
        (["cancel", "--help"], ("httpx",)),
        (["version"], ("httpx",)),
        (["jobs", "--server", "http://127.0.0.1:9"], ("httpx",)),
        (["overrides", "--server", "http://127.0.0.1:9"], ("httpx",)),
    ],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], also: tuple[str, ...]) -> None:
    done = run(*arguments)
    loaded = done.stdout.rpartition("LOADED ")[2].partition("OURS ")[0].split()
    assert "typer" in loaded, done
    assert [name for name in (*HEAVY, *also) if name in loaded] == []


def test_a_plan_that_does_not_look_ahead_loads_no_scheduler(starter: Path) -> None:
    done = run("plan", "HEAD", "--base", "HEAD", "--no-forecast", "--repo", str(starter))
    assert "No changes." in done.stdout, done
    loaded = done.stdout.rpartition("LOADED ")[2].partition("OURS ")[0].split()
    assert "yaml" in loaded
    assert "numpy" not in loaded


def test_a_command_loads_no_other_commands_modules() -> None:
    ours = run("jobs", "--help").stdout.rpartition("OURS ")[2].split()
    others = {f"reconciler.cli.{name}" for name in main.COMMANDS} - {
        "reconciler.cli.jobs.jobs_command"
    }
    assert "reconciler.cli.jobs.jobs_command" in ours
    assert not others & set(ours)


def test_every_command_is_found_in_its_module() -> None:
    listed = [word for words in main.COMMANDS.values() for word in words]
    assert len(listed) == len(set(listed))
    assert set(main.application().commands) == set(listed)
    for word in listed:
        assert word in main.application(word).commands


def test_modules_that_are_loaded_late_are_those_of_operations() -> None:
    folder = Path(main.__file__).parent
    texts = [path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))]
    names = [name for text in texts for name in re.findall(r'lazy_import\.module\("(.*?)"', text)]
    allowed = ("reconciler.operations.", "reconciler.model.", "rich.")
    assert names
    assert [name for name in names if not name.startswith(allowed)] == []


def test_every_command_has_one_section_of_the_help() -> None:
    commands = [name for names in main.COMMANDS.values() for name in names]
    assert sorted(name for names in main.SECTIONS.values() for name in names) == sorted(commands)


def test_the_help_is_plain_and_fits_80_columns() -> None:
    text = run("--help").stdout.partition("LOADED ")[0]
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert not [line for line in text.splitlines()[1:] if line.endswith("...")]
    for section in main.SECTIONS:
        assert f"\n{section}:\n" in text


def test_of_a_word_that_is_none_all_commands_are_known() -> None:
    done = run("jbos")
    assert "jobs" in done.stderr


def test_a_plan_without_a_controller_loads_no_store() -> None:
    done = run("plan", "HEAD", "--base", "HEAD", "--no-forecast", "--repo", "/nowhere")
    loaded = done.stdout.rpartition("LOADED ")[2].partition("OURS ")[0].split()
    assert "msgspec" in loaded, done
    assert "is no git repository" in done.stderr
    assert not {"sqlalchemy", "litestar"} & set(loaded)


def _whole_commands() -> list[tuple[str, Any]]:
    """Return every command and command of a group, by how it is called."""
    found = []
    for name, command in main.application().commands.items():
        if name in {"controller", "agent"}:  # these have parsers of their own
            continue
        found.append((name, command))
        for below, inner in getattr(command, "commands", {}).items():
            found.append((f"{name} {below}", inner))
    return found


@pytest.mark.parametrize(("name", "command"), _whole_commands())
def test_every_help_can_be_read(name: str, command: Any) -> None:
    """It fits 80 columns, and says of each value what to type and what it is without."""
    context = command.context_class(command, info_name=f"muster {name}", terminal_width=80)
    text = command.get_help(context)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<(str|int|float|path)( range)?>", text), "the type says nothing"
    summary = command.help.partition("\n")[0]
    assert summary[0].isupper()
    assert summary.endswith(".")
    assert not summary.partition(" ")[0].endswith("s"), "an imperative"
    for option in command.params:
        assert option.help, option.name


@pytest.mark.parametrize(("name", "command"), _whole_commands())
def test_every_option_with_a_value_says_its_default(name: str, command: Any) -> None:
    left = [
        option.opts[0]
        for option in command.params
        if option.param_type_name == "option"
        and not (option.is_flag or option.required or option.default)
        and "Default: " not in option.help
    ]
    assert left == (["--at"] if name == "explain" else []), "now is the default of --at"


def test_every_named_value_is_that_of_some_option_or_argument() -> None:
    options, arguments = set(), set()
    for _, command in _whole_commands():
        options |= {one.opts[0] for one in command.params if one.param_type_name == "option"}
        arguments |= {(command.name, one.name) for one in command.params}
    assert value_names._OPTIONS.keys() <= options
    assert value_names._ARGUMENTS.keys() <= arguments
