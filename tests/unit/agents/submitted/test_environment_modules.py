"""Variables of environment modules come from a login shell; what it says of a failure is told."""

from pathlib import Path

import pytest

from agents.isolation import user_commands
from agents.submitted import environment_modules

COMMANDS = user_commands.UserCommands()


def load(home: Path, *modules: str) -> dict[str, str]:
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    request = environment_modules.ModuleRequest(modules, None, environment)
    return environment_modules.load(request, COMMANDS)


def test_what_changed_is_returned_alone(tmp_path: Path) -> None:
    """Whatever the profile prints is no part of the environment."""
    (tmp_path / ".bash_profile").write_text(
        "echo Welcome; module() { export TOOL=$2; export MANY=$'a\\nb'; echo loaded; }\n"
    )
    found = load(tmp_path, "gcc")
    assert (found["TOOL"], found["MANY"]) == ("gcc", "a\nb")
    assert "HOME" not in found


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo no such thing >&2; return 1", "module load gcc cuda: no such thing. To fix: see"),
        ("echo 'ERROR: Unable to locate a modulefile' >&2", "Unable to locate a modulefile"),
        ("echo 'Lmod has detected the following error: x' >&2", "the following error: x"),
        ("exit 0", "exited"),
    ],
)
def test_what_can_not_be_loaded_is_told(tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / ".bash_profile").write_text(f"module() {{ {body}; }}\n")
    with pytest.raises(environment_modules.ModulesError, match=told):
        load(tmp_path, "gcc", "cuda")


def test_a_node_without_modules_says_so(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("unset -f module\n")
    with pytest.raises(environment_modules.ModulesError, match="has no `module` command"):
        load(tmp_path, "gcc")
