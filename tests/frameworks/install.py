"""Makes a virtual environment with the frameworks that jobs of tests run, or says why it can't.

Run by ``make frameworks`` with any Python of 3.11 or newer. Where packages can't be had, the tests
that need them are left out and named: nothing else depends on them.
"""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / ".venv-frameworks"
#: What is pinned, and what for; the environment is made anew when either changes.
PINNED = (PROJECT / "constraints-frameworks.txt", Path(__file__).with_name("packages.txt"))
#: Written when all is installed, with what was asked for.
MARK = FOLDER / "installed.txt"
INSTALL_S = 300.0


def wanted() -> str:
    """What the environment has to be made of."""
    return sys.version + "".join(path.read_text(encoding="utf-8") for path in PINNED)


def is_there() -> bool:
    """Whether the environment is whole, and of these versions."""
    return MARK.exists() and MARK.read_text(encoding="utf-8") == wanted()


def install() -> str:
    """Make the environment; why it can't be made, or nothing."""
    constraints, packages = map(str, PINNED)
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(FOLDER)],
        [
            *(str(FOLDER / "bin/python"), "-m", "pip", "install", "--quiet"),
            *("--disable-pip-version-check", "--prefer-binary"),
            *("--constraint", constraints, "--requirement", packages),
        ],
    )
    for step in steps:
        try:
            done = subprocess.run(step, check=False, timeout=INSTALL_S)
        except subprocess.TimeoutExpired:
            return f"`{' '.join(step)}` took longer than {INSTALL_S:g} s"
        if done.returncode != 0:
            return f"`{' '.join(step)}` failed"
    MARK.write_text(wanted(), encoding="utf-8")
    return ""


if __name__ == "__main__":
    problem = "" if is_there() else install()
    if problem:
        print(f"frameworks: {problem}; their tests are left out", file=sys.stderr)
