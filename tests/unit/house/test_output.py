"""Output of commands: all of it goes through the module that escapes words of others."""

import ast
from pathlib import Path

import pytest

from reconciler import package_data
from tests.unit.house import measures

ROOT = package_data.checkout()
COMMANDS = ROOT / "reconciler" / "cli"
#: Modules that write by themselves, and why.
ALLOWED = {
    "terminal.py": "it is that module",
    "entry.py": "nothing is loaded yet, and the words are its own",
    "cluster/top.py": "its screen, of lines that are escaped",
    "cluster/report.py": "pictures",
    "jobs/task_output.py": "output of tasks, which has rules of its own",
}
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}


def _writes(tree: ast.Module) -> list[int]:
    """Return lines that write to stdout or stderr, or that make another console."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        stream, _, method = called.removesuffix(".buffer").rpartition(".")
        is_write = method in {"write", "writelines"} and stream.removesuffix(".buffer") in STREAMS
        words = {"print", "typer.echo", "typer.secho", "rich.print", "os.write"}
        if is_write or called in words or called.endswith("Console"):
            found.append(node.lineno)
    return found


def test_what_goes_round_is_found() -> None:
    evil = "sys.stdout.write(x)\nsys.stderr.buffer.write(x)\nprint(x)\nrich.console.Console()\n"
    assert _writes(ast.parse(evil)) == [1, 2, 3, 4]
    assert _writes(ast.parse("terminal.out.print(x)\nfile.write(x)\nsys.stdout.flush()\n")) == []


@pytest.mark.parametrize(
    "path",
    [path for path in measures.modules(ROOT) if path.is_relative_to(COMMANDS)],
    ids=lambda path: str(path.relative_to(COMMANDS)),
)
def test_no_command_goes_round_it(path: Path) -> None:
    if str(path.relative_to(COMMANDS)) not in ALLOWED:
        assert _writes(measures.tree(path)) == []
