"""Installs the Debian packages that integration tests need, or says which tests go without.

Lmod conflicts with Environment Modules, so that it is unpacked beside them, below ``UNPACKED``.
Run by ``make test`` with the system's Python. In CI (``CI=true``) a package that can't be had is
an error; elsewhere its tests are left out and named.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

#: What Debian's packages ask whether they may start a service.
POLICY = Path("/usr/sbin/policy-rc.d")
LIST = Path(__file__).parent.parent / "debian-packages.txt"
#: Where packages are that can't be installed beside those of the list.
UNPACKED = LIST.with_name(".unpacked")
LMOD = "lmod"


def wanted() -> list[str]:
    """The packages named in ``debian-packages.txt``."""
    lines = (line.split("#")[0].strip() for line in LIST.read_text().splitlines())
    return [line for line in lines if line]


def missing() -> list[str]:
    """Those of them that are not installed."""
    if not shutil.which("dpkg-query"):
        return wanted()
    absent = []
    for package in wanted():
        query = ["dpkg-query", "-W", "-f", "${Status}", package]
        found = subprocess.run(query, capture_output=True, text=True, check=False)
        if "install ok installed" not in found.stdout:
            absent.append(package)
    return absent


def install() -> int:
    """Install what is missing, or say what that costs."""
    absent = missing()
    problem = fetch(absent) if absent else ""
    if why := unpack(LMOD):
        print(f"packages: {LMOD} can't be unpacked ({why}); its test is left out", file=sys.stderr)
    return report(missing(), problem) if problem else 0


def unpack(package: str) -> str:
    """Unpack a package into a folder of its own, unless it is there; why that can't be."""
    if (UNPACKED / package).is_dir():
        return ""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "no apt-get here"
    with tempfile.TemporaryDirectory() as folder:
        command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
        if subprocess.run(command, cwd=folder, check=False).returncode != 0:
            return f"`{' '.join(command)}` failed"
        (file,) = Path(folder).glob("*.deb")
        fresh = UNPACKED / f"{package}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        if subprocess.run(["dpkg-deb", "-x", str(file), str(fresh)], check=False).returncode != 0:
            return "dpkg-deb failed"
        fresh.rename(UNPACKED / package)
    return ""


def fetch(absent: list[str], to: TextIO | None = None) -> str:
    """Install packages as root or through sudo without a password; why that can't be, or nothing.

    What apt-get says goes ``to`` there, else to standard output.
    """
    prefix: list[str] = []
    if os.geteuid() != 0:
        sudo = shutil.which("sudo")
        asked = [sudo or "sudo", "-n", "true"]
        if not sudo or subprocess.run(asked, capture_output=True, check=False).returncode:
            return "not root and no sudo without a password"
        prefix = [sudo, "-n"]
    if not shutil.which("apt-get"):
        return "no apt-get here"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if prefix:
        prefix += ["env", "DEBIAN_FRONTEND=noninteractive"]
    with without_services(prefix):
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *absent]):
            command = [*prefix, "apt-get", "-qq", *arguments]
            if subprocess.run(command, env=environment, stdout=to, check=False).returncode != 0:
                return f"`{' '.join(command)}` failed"
    return ""


@contextlib.contextmanager
def without_services(prefix: list[str]) -> Iterator[None]:
    """Keep packages from starting their services: tests start programs in folders of their own."""
    if POLICY.exists():  # a container's own, which denies starts too
        yield
        return
    with tempfile.NamedTemporaryFile("w") as text:
        text.write("#!/bin/sh\nexit 101\n")
        text.flush()
        subprocess.run([*prefix, "install", "-m", "755", text.name, str(POLICY)], check=False)
    try:
        yield
    finally:
        subprocess.run([*prefix, "rm", "-f", str(POLICY)], check=False)


def report(absent: list[str], why: str) -> int:
    """Say what is missing and what that costs."""
    print(
        f"packages: {' '.join(absent)} missing ({why}); their tests are left out", file=sys.stderr
    )
    return 1 if os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(install())
