"""Data of tasks in buckets: a real S3-compatible server on loopback, with credentials."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agents.data import object_store
from reconciler.model.observed.storage import In, ObjectStore, Out, StagingPlan, VolumeStore
from reconciler.model.protocol import agent_messages
from reconciler.model.state.states import EndReason
from reconciler.operations.local import free_ports
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller
from tests.integration.agents.test_staging import helpers

#: Larger than what is sent in one part.
LARGE = os.urandom(object_store.PART_BYTES + 2**20)
ACCESS, SECRET = "muster-tests", "a-key-of-the-tests-that-is-long-enough"


class Server:
    """A server of a folder, each folder in which is a bucket; ``data`` is one."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.bucket = folder / "data"

    def store(self, **more: str) -> VolumeStore:
        """The bucket, as a job names it."""
        keys = {"access_key": "s3-access", "secret_key": "s3-secret"}
        return VolumeStore("v", objects=ObjectStore(self.url, "data", **(keys | more)))


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[int]:
    """A server of the folder that takes nothing that is not signed; its port."""
    port = free_ports.free_port()
    # a cache of 0 s would set its own timers for at once: it spins, and answers nothing
    program = shutil.which("rclone", path=str(Path(sys.executable).parent)) or "rclone"
    command = [
        program, "serve", "s3", str(folder), f"--addr=127.0.0.1:{port}",
        f"--auth-key={ACCESS},{SECRET}", "--config=", "--dir-cache-time=10ms", *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.05)
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "data" / "sets" / "a" / "deep").mkdir(parents=True)
    (folder / "data" / "sets" / "a" / "large.bin").write_bytes(LARGE)
    (folder / "data" / "sets" / "a" / "deep" / "small.txt").write_text("small\n")
    (folder / "data" / "sets" / "ab.txt").write_text("other\n")
    with serving(folder) as port:
        yield Server(f"http://127.0.0.1:{port}", folder)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority that nobody trusts, and a server's certificate by it."""
    folder = tmp_path_factory.mktemp("tls")
    openssl(
        folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
        "/CN=authority of the tests", "-keyout", "ca.key", "-out", "ca.pem",
    )  # fmt: skip
    openssl(
        folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1",
        "-keyout", "server.key", "-out", "server.csr",
    )  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        folder, "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days",
        "2", "-CAcreateserial", "-extfile", "names", "-out", "server.pem",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def safe(server: Server, authority: Path) -> Iterator[Server]:
    """The same folder by TLS."""
    options = (f"--cert={authority}/server.pem", f"--key={authority}/server.key")
    with serving(server.bucket.parent, *options) as port:
        yield Server(f"https://127.0.0.1:{port}", server.bucket.parent)


@pytest.fixture
def clerk(node: Node, tmp_path: Path) -> Node:
    """A node that knows the user's keys."""
    folder = tmp_path / "secrets" / _user()
    folder.mkdir(parents=True, mode=0o755)
    for name, value in {"s3-access": ACCESS, "s3-secret": SECRET}.items():
        (folder / name).write_text(value)
        (folder / name).chmod(0o600)
    node.start("--secrets", str(tmp_path / "secrets"))
    return node


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def template(plan: StagingPlan, script: str) -> agent_messages.TaskTemplate:
    command = ("sh", "-ec", script)
    return agent_messages.TaskTemplate("job", 1, "g", command=command, grace_s=20, stage=plan)


def test_objects_come_in_and_results_go_out(
    clerk: Node, controller: Controller, server: Server
) -> None:
    plan = StagingPlan(
        ins=(In("a", server.store(prefix="sets"), "a"), In("one", server.store(), "sets/ab.txt")),
        outs=(Out("out", server.store(prefix="results"), "{job}/{index}"),),
    )
    script = (
        "mkdir -p out/deep; cp $MUSTER_STAGED_A/large.bin out/; cp $MUSTER_STAGED_ONE out/deep/one;"
        " ls $MUSTER_STAGED_A > out/names; env > out/environment"
    )
    controller.assign("a.1", template=template(plan, script))
    end = controller.ended("a.1")
    assert (end.end_reason, end.exit_code, end.message) == (EndReason.EXITED, 0, "")
    out = server.bucket / "results" / "job" / "0" / "out"
    assert (out / "large.bin").read_bytes() == LARGE
    assert (out / "deep" / "one").read_bytes() == b"other\n"
    assert (out / "names").read_bytes() == b"deep\nlarge.bin\n"
    assert SECRET.encode() not in (out / "environment").read_bytes()
    # nothing that is kept on the node or told has a key in it
    for path in clerk.root.rglob("*"):
        if path.is_file() and "cache" not in path.parts:
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in clerk.log.read_text()
    assert not helpers(clerk)


@pytest.mark.parametrize(
    "case",
    [
        ({}, "sets/nothing", "there is no such object"),
        ({"secret_key": "wrong"}, "sets/a", "SignatureDoesNotMatch"),
        ({"secret_key": "unknown"}, "sets/a", "secret 'unknown'"),
        ({"prefix": "nothing"}, "", "nothing: there is no such object"),
    ],
)
def test_what_a_service_refuses_is_said(
    clerk: Node, controller: Controller, server: Server, case: tuple[dict[str, str], str, str]
) -> None:
    more, path, message = case
    wrong = clerk.root.parent / "secrets" / _user() / "wrong"
    wrong.write_text("not-the-key")
    wrong.chmod(0o600)
    plan = StagingPlan(ins=(In("a", server.store(**more), path),))
    controller.assign("a.1", template=template(plan, "true"))
    end = controller.ended("a.1")
    assert end.end_reason in {EndReason.STAGE_FAILED, EndReason.START_FAILED}
    assert message in end.message
    assert "not-the-key" not in end.message


def test_a_service_that_is_away_is_said_after_a_while(clerk: Node, controller: Controller) -> None:
    port = free_ports.free_port()
    store = VolumeStore("v", objects=ObjectStore(f"http://127.0.0.1:{port}", "data"))
    controller.assign("a.1", template=template(StagingPlan(ins=(In("a", store, "x"),)), "true"))
    end = controller.ended("a.1")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert f"127.0.0.1:{port}" in end.message


def test_an_object_that_changes_meanwhile_is_not_taken(server: Server) -> None:
    store = {"endpoint": server.url, "bucket": "data"}
    bucket = object_store.Bucket(store, (ACCESS, SECRET))
    single, ((name, size, _tag),) = bucket.list("sets/ab.txt", 10)
    assert (single, name, size) == (True, "ab.txt", 6)
    with pytest.raises(object_store.BucketError, match="changed meanwhile"):
        list(bucket.read("sets/ab.txt", name, "0" * 32, single=True))
    with pytest.raises(object_store.BucketError, match="more than 1 objects"):
        bucket.list("sets", 1)


def test_an_authority_of_ones_own_is_trusted_where_the_volume_says_so(
    clerk: Node, controller: Controller, safe: Server, authority: Path
) -> None:
    trusted = safe.store(ca_certificate=(authority / "ca.pem").read_text())
    out = Out(
        "out", safe.store(ca_certificate=(authority / "ca.pem").read_text(), prefix="tls"), "x"
    )
    plan = StagingPlan(ins=(In("a", trusted, "sets/a"),), outs=(out,))
    controller.assign("a.1", template=template(plan, "cp $MUSTER_STAGED_A/large.bin out"))
    end = controller.ended("a.1")
    assert (end.end_reason, end.exit_code, end.message) == (EndReason.EXITED, 0, "")
    assert (safe.bucket / "tls" / "x" / "out").read_bytes() == LARGE
    controller.assign(
        "a.2", template=template(StagingPlan(ins=(In("a", safe.store(), "sets/a"),)), "true")
    )
    end = controller.ended("a.2")
    assert end.end_reason is EndReason.STAGE_FAILED, "nobody else trusts it"
    assert safe.url in end.message


def test_a_certificate_that_is_none_is_said(
    clerk: Node, controller: Controller, safe: Server
) -> None:
    broken = "-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"
    plan = StagingPlan(ins=(In("a", safe.store(ca_certificate=broken), "sets/a"),))
    controller.assign("a.1", template=template(plan, "true"))
    end = controller.ended("a.1")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert safe.url in end.message


@pytest.mark.parametrize("how", ["the job's user", "an agent that is not root"])
def test_data_is_copied_as_somebody_who_is_not_root(
    everybodys: Node, controller: Controller, server: Server, tmp_path: Path, how: str
) -> None:
    node, nobody = everybodys, pwd.getpwnam("nobody")
    keys = tmp_path / "secrets" / "nobody"
    keys.mkdir(parents=True)
    for name, value in {"s3-access": ACCESS, "s3-secret": SECRET}.items():
        (keys / name).write_text(value)
        (keys / name).chmod(0o600)
        os.chown(keys / name, nobody.pw_uid, nobody.pw_gid)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    (locked / "file").write_text("root's\n")
    to = tmp_path / "results"
    to.mkdir()
    os.chown(to, nobody.pw_uid, nobody.pw_gid)
    made = template(
        StagingPlan(
            ins=(In("a", server.store(), "sets/a"),),
            outs=(
                Out("out", VolumeStore("w", str(to)), "x"),
                Out("out", server.store(prefix="as"), "x"),
            ),
        ),
        "mkdir out; cp $MUSTER_STAGED_A/deep/small.txt out/; id -un > out/who",
    )
    if how == "the job's user":
        node.start("--secrets", str(tmp_path / "secrets"))
        made = msgspec.structs.replace(made, user="nobody")
    else:
        for path in (node.root, node.root / "crash"):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        node.start_as("nobody", "--secrets", str(tmp_path / "secrets"))
    controller.boot_id()
    node.root.chmod(0o755)
    controller.assign("a.1", template=made, allow_root=False)
    end = controller.ended("a.1")
    assert (end.end_reason, end.exit_code, end.message) == (EndReason.EXITED, 0, "")
    assert (to / "x" / "out" / "who").read_text() == "nobody\n"
    assert (to / "x" / "out" / "small.txt").stat().st_uid == nobody.pw_uid
    assert (server.bucket / "as" / "x" / "out" / "small.txt").read_text() == "small\n"
    # what the user can't read is not read for them
    plan = StagingPlan(ins=(In("b", VolumeStore("l", str(locked)), "file"),))
    barred = msgspec.structs.replace(made, stage=plan, command=("true",))
    controller.assign("a.2", template=barred, allow_root=False)
    end = controller.ended("a.2")
    assert end.end_reason is EndReason.STAGE_FAILED
    assert "Permission denied" in end.message
