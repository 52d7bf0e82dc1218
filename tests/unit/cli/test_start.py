"""What a command costs before it begins: heavy modules are left alone until they are needed."""

import os
import subprocess
import sys

import pytest

#: What light commands have no use for.
HEAVY = (
    *("numpy", "sqlalchemy", "litestar", "git", "ruamel", "jsonschema", "yaml", "uvicorn"),
    "pydantic",
)
LOOK = """
import sys
from reconciler.cli import main
try:
    main.main()
finally:
    print("\\nLOADED", *sorted({name.partition(".")[0] for name in sys.modules}))
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
        (["jobs", "--server", "http://127.0.0.1:9"], ()),
        (["overrides", "--server", "http://127.0.0.1:9"], ()),
    ],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], also: tuple[str, ...]) -> None:
    done = run(*arguments)
    loaded = done.stdout.rpartition("LOADED ")[2].split()
    assert "typer" in loaded, done
    assert [name for name in (*HEAVY, *also) if name in loaded] == []
