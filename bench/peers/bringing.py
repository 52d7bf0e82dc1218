"""Has a peer that is missing installed: a wheel by pip, programs by apt-get.

A wheel goes into the environment that runs the benchmark, at the version of ``constraints.txt``;
packages of Debian are installed where that is allowed without a question. What can't be had is
told in a line, with the command that would do it, and the benchmark goes on without that peer.
"""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from reconciler import package_data
from tests import packages

CONSTRAINTS = package_data.checkout() / "constraints.txt"
#: Seconds that pip has; without a network it gives up much sooner.
_PIP_S = 300.0
#: The longest line of another program that is passed on.
_WORDS = 200


def wheel(name: str, constraints: Path = CONSTRAINTS) -> str:
    """Have the module of a wheel, both called ``name``, here; why that can't be, or nothing."""
    if importlib.util.find_spec(name):
        return ""
    wanted = _pinned(name, constraints)
    here = f"`{sys.executable} -m pip install {wanted}`"
    if sys.prefix == sys.base_prefix:
        return f"not installed, and this Python is in no virtual environment; in one: {here}"
    print(f"bench: {name} is not installed; {here}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--retries=1", "--timeout=15", f"--constraint={constraints}", wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not installed: {here} took longer than {_PIP_S:.0f} s"
    importlib.invalidate_caches()
    if done.returncode or not importlib.util.find_spec(name):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith("ERROR:")), "it does not say why")
        return f"not installed, and {here} failed: {told[:_WORDS]}"
    return ""


def programs(wanted: Mapping[str, str]) -> str:
    """Have programs here, each with its package; why that can't be, or nothing."""
    absent = _absent(wanted)
    if not absent:
        return ""
    print(f"bench: {' '.join(absent)} missing; installing it by apt-get", file=sys.stderr)
    problem = packages.fetch(absent, to=sys.stderr)
    absent = _absent(wanted)
    if not absent:
        return ""
    by_hand = f"apt-get install --no-install-recommends {' '.join(absent)}"
    return f"not installed ({problem or 'apt-get did not bring them'}); as root: {by_hand}"


def _pinned(name: str, constraints: Path) -> str:
    """A wheel at the version that is tested."""
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}=="):
            return line.strip()
    return name


def _absent(wanted: Mapping[str, str]) -> list[str]:
    """Packages of programs that are on no path, where daemons may be too."""
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return sorted({of for program, of in wanted.items() if not shutil.which(program, path=search)})
