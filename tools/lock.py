"""``python -m tools.lock FILE``: write what pip would install here, with versions and hashes.

The file holds no addresses, so it can be used with any index or mirror:
``pip install --require-hashes -r FILE`` refuses a package that is not, byte for byte, the one that
was locked. The hashes are those of the files for this Python and this platform.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_PROJECT = "muster-cluster"
_HEADER = """\
# What pip installs for {wanted} on Python {python}, {platform}.
# To install it: pip install --require-hashes -r {name} && pip install --no-deps .
"""


class LockError(Exception):
    """Pip can't say what it would install, or not with a hash."""


def requirements(report: dict[str, Any], project: str = _PROJECT) -> list[str]:
    """Return a line for each package of a report of pip, sorted by name, without the project.

    Args:
        report: as ``pip install --dry-run --report`` writes it.
        project: the name of the project itself, which is no package of an index.

    Raises:
        LockError: a package has no SHA-256.
    """
    found = {}
    for package in report["install"]:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if name.lower() == project:
            continue
        hashes = package["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" not in hashes:
            raise LockError(f"pip tells no SHA-256 of {name} {version}: is it a folder or a link?")
        found[name.lower()] = f"{name}=={version} --hash=sha256:{hashes['sha256']}"
    return [found[name] for name in sorted(found)]


def pip_report(wanted: str, constraints: Path) -> dict[str, Any]:
    """Return what pip would install into an empty environment.

    Raises:
        LockError: pip fails.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--report=-", f"--constraint={constraints}", wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LockError(f"pip can't resolve {wanted}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main(arguments: list[str]) -> int:
    """Write the file. Return 1 if pip can't say what belongs in it."""
    parser = argparse.ArgumentParser(prog="python -m tools.lock", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--for", dest="wanted", default=".[agent,controller]", metavar="PROJECT")
    options = parser.parse_args(arguments)
    try:
        report = pip_report(options.wanted, Path("constraints.txt"))
        lines = requirements(report)
    except LockError as error:
        sys.stderr.write(f"tools.lock: {error}\n")
        return 1
    environment = report["environment"]
    header = _HEADER.format(
        wanted=options.wanted,
        python=environment["python_version"],
        platform=f"{environment['sys_platform']} {environment['platform_machine']}",
        name=options.file.name,
    )
    options.file.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{options.file}: {len(lines)} packages with hashes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
