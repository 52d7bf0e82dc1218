"""What keeps users of a host from running podman, and what is said to install."""

import os
from pathlib import Path

import pytest

from agents.preflight import rootless_findings

UID = 12345
FILES = {
    "etc/subuid": f"ada:100000:65536\n{UID}:165536:65536\n",
    "etc/subgid": f"ada:100000:65536\n{UID}:165536:65536\n",
    "proc/sys/user/max_user_namespaces": "96365\n",
}
PROGRAMS = {"newuidmap": 0o4755, "newgidmap": 0o4755, "crun": 0o755}


class Host:
    """A host on which users can run podman, until something is taken away."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "bin").mkdir()
        for name, mode in PROGRAMS.items():
            self.program(name, mode)
        for name, text in FILES.items():
            self.file(name, text)

    def program(self, name: str, mode: int) -> None:
        (self.top / "bin" / name).touch()
        (self.top / "bin" / name).chmod(mode)

    def file(self, name: str, text: str) -> None:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def says(self, uid: int = 0) -> tuple[str, str]:
        found = rootless_findings.podman(str(self.top / "bin"), self.top, uid)
        assert found.name == "podman"
        return found.level, f"{found.found}. {found.do}"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("uid", [0, UID])
def test_a_host_with_all_of_it_is_well(host: Host, uid: int) -> None:
    assert host.says(uid)[0] == "ok"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_missing_is_named_with_its_package(host: Host, name: str) -> None:
    (host.top / "bin" / name).unlink()
    level, text = host.says()
    assert level == "note"
    assert name in text
    assert "To fix: apt-get install uidmap crun" in text


def test_a_mapper_without_rights_is_named(host: Host) -> None:
    host.program("newuidmap", 0o755)
    level, text = host.says()
    assert (level, "newuidmap has neither the setuid bit" in text) == ("note", True)
    if os.geteuid() == 0:  # as distributions that give it capabilities instead
        capability = bytes.fromhex("0100000280000000000000000000000000000000")
        os.setxattr(host.top / "bin/newuidmap", "security.capability", capability)
        assert host.says()[0] == "ok"


@pytest.mark.parametrize("name", ["etc/subuid", "etc/subgid"])
@pytest.mark.parametrize("text", [None, "", "# nobody\n"])
def test_a_host_without_ids_for_users_is_told(host: Host, name: str, text: str | None) -> None:
    (host.top / name).unlink()
    if text is not None:
        host.file(name, text)
    level, said = host.says()
    assert level == "note"
    assert f"/{name} has no ids for any user" in said
    assert "usermod --add-subuids" in said
    host.file("etc/nsswitch.conf", "passwd: files\nsubid: sss\n")
    assert host.says()[0] == "ok", "a directory may have them"


def test_an_agent_without_root_needs_ids_of_its_own(host: Host) -> None:
    host.file("etc/subuid", "ada:100000:65536\n")
    assert host.says()[0] == "ok"
    level, text = host.says(UID)
    assert (level, "/etc/subuid has no ids for it" in text) == ("note", True)


def test_a_kernel_without_user_namespaces_is_told(host: Host) -> None:
    host.file("proc/sys/user/max_user_namespaces", "0\n")
    level, text = host.says()
    assert level == "note"
    assert "sysctl -w user.max_user_namespaces=15000" in text
