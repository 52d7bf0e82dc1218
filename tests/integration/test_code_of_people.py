"""Code of several people: each has only their own, as their own Unix user, and nobody reads it."""

import contextlib
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from reconciler.operations.client import api_client, endpoints, file_sender
from reconciler.operations.tokens import token_changes
from tests.integration import beds, test_code

ADA, BOB, CAROL = "ada@x.org", "bob@x.org", "carol@x.org"
PEOPLE = """\
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec:
  identities:
    - {email: ada@x.org, unixUser: nobody}
    - {email: bob@x.org, unixUser: daemon}
    - {email: carol@x.org}
  roles:
    - name: researchers
      members: [ada@x.org, bob@x.org]
      allow: [{verbs: [submit], queues: ["*"]}]
"""


class Person(NamedTuple):
    """Somebody with a token."""

    bed: beds.Bed
    token_file: Path
    api: file_sender.FileSender

    def muster(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return test_code.muster(self.bed, folder, *words, token_file=str(self.token_file))

    def send(self, data: bytes, digest: str = "") -> None:
        found = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.api.put(f"/v1/code/{found}", io.BytesIO(data), len(data), {})


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("people"), nodes=1) as made:
        made.commit({"queues.yaml": test_code.QUEUES, "people.yaml": PEOPLE})
        for folder in (made.folder, *made.folder.parents):
            if str(folder).startswith("/tmp/"):
                folder.chmod(folder.stat().st_mode | 0o011)
        yield made


@contextlib.contextmanager
def person(bed: beds.Bed, name: str) -> Iterator[Person]:
    path = bed.folder / f"{name}.token"
    if not path.exists():
        token, _ = token_changes.create(bed.cluster.state / "tokens", name, "user", None)
        path.touch(0o600)
        path.write_text(token)
    api = file_sender.FileSender(endpoints.Endpoint(bed.cluster.url, str(path)))

    def is_known() -> bool:
        try:
            api.get("/v1/identity")
        except api_client.ApiError as error:
            if error.status != 401:
                raise
            return False
        return True

    with api:
        bed.until(is_known)
        yield Person(bed, path, api)


@pytest.fixture
def ada(bed: beds.Bed) -> Iterator[Person]:
    with person(bed, ADA) as found:
        yield found


@pytest.fixture
def bob(bed: beds.Bed) -> Iterator[Person]:
    with person(bed, BOB) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "who.sh").write_text(
        '#!/bin/sh\nid -un; stat -c "%U %a %Y" who.sh; touch made && echo made\n'
    )
    (folder / "who.sh").chmod(0o755)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_it_is_unpacked_as_the_user_of_the_job(ada: Person, project: Path) -> None:
    done = ada.muster(project, "run", "--cpus", "1", "--code", ".", "--", "./who.sh")
    assert done.stdout == "nobody\nnobody 755 946684800\nmade\n", done.stderr
    (cache,) = {path.parent for path in test_code.cached(ada.bed)}
    assert (cache.stat().st_uid, cache.stat().st_mode & 0o777) == (0, 0o700)


def test_who_knows_a_digest_has_not_the_code(ada: Person, bob: Person, project: Path) -> None:
    """Neither by the API nor by a job that names it: the node is not given it."""
    secret = project / "secret.py"
    secret.write_text("print('of ada')\n")
    made = ada.muster(project, "submit", "--name", "of-ada", "--code", ".", "--", "true")
    assert made.returncode == 0, made.stderr
    digest = ada.bed.until(lambda: ada.bed.job("of-ada")["code"])
    assert ada.api.get(f"/v1/code/{digest}")["code"] == {"digest": digest}
    with pytest.raises(api_client.ApiError) as caught:
        bob.api.get(f"/v1/code/{digest}")
    assert caught.value.status == 404
    taken = bob.muster(
        project, "submit", "--name", "taken", "--set", f"code.digest={digest}", "--", "cat",
        "secret.py",
    )  # fmt: skip
    assert taken.returncode == 0, taken.stderr
    job = bob.bed.until_state("taken", "Failed", "Succeeded")
    assert job["state"] == "Failed"
    assert "was not sent by bob@x.org, whose job this is" in job["message"]
    # who has the same files may have them run
    own = bob.muster(project, "run", "--cpus", "1", "--code", ".", "--", "cat", "secret.py")
    assert own.stdout == "print('of ada')\n", own.stderr
    assert len(list(bob.bed.cluster.state.glob(f"code-{digest[7:]}.tar"))) == 1


def test_code_of_a_job_is_told_only_who_may_read_it(
    ada: Person, bob: Person, project: Path
) -> None:
    made = ada.muster(project, "submit", "--name", "told", "--code", ".", "--", "true")
    assert made.returncode == 0, made.stderr
    assert ada.bed.until(lambda: ada.bed.job("told")["code"]).startswith("sha256:")
    assert ada.api.get("/v1/jobs/told")["job"]["code"].startswith("sha256:")
    assert bob.api.get("/v1/jobs/told")["job"]["code"] == ""


def test_who_may_not_submit_may_not_send(bed: beds.Bed) -> None:
    with person(bed, CAROL) as carol, pytest.raises(api_client.ApiError) as caught:
        carol.send(b"something")
    assert caught.value.status == 403


def test_who_may_not_act_for_another_sends_no_code_for_them(bed: beds.Bed) -> None:
    """A token without an address names the owner, but not whom it likes: also without any roles."""
    path = f"/v1/code/sha256:{'0' * 64}"
    with person(bed, "ci") as robot:
        _pull(bed)
        bed.commit({"people.yaml": PEOPLE.partition("  roles:")[0]})
        try:
            bed.until(lambda: not _is_refused(robot, path, ""))  # without roles all may have jobs
            assert _is_refused(robot, path, ADA)
            with pytest.raises(api_client.ApiError, match=f"act as {ADA}") as caught:
                robot.api.put(path, io.BytesIO(b"x"), 1, {"owner": ADA})
            assert caught.value.status == 403
        finally:
            bed.commit({"people.yaml": PEOPLE})
            bed.until(lambda: _is_refused(robot, path, ""))


def _pull(bed: beds.Bed) -> None:
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)


def _is_refused(who: Person, path: str, owner: str) -> bool:
    """Return True if somebody has no right to look for code of an owner."""
    with pytest.raises(api_client.ApiError) as caught:
        who.api.get(path, owner=owner)
    assert caught.value.status in {403, 404}
    return caught.value.status == 403


@pytest.mark.parametrize(
    ("digest", "status", "told"),
    [
        (f"sha256:{'0' * 64}", 400, "it was changed on its way"),
        ("sha256:abc", 400, "expected sha256: and 64 digits"),
    ],
)
def test_what_is_not_its_digest_is_not_kept(
    ada: Person, digest: str, status: int, told: str
) -> None:
    with pytest.raises(api_client.ApiError, match=told) as caught:
        ada.send(b"something", digest)
    assert caught.value.status == status
    assert list(ada.bed.cluster.state.glob("code-*.part")) == []


def test_too_much_is_refused_before_it_is_sent(ada: Person) -> None:
    with pytest.raises(api_client.ApiError, match="expected at most 268435456") as caught:
        ada.api.put(f"/v1/code/sha256:{'0' * 64}", io.BytesIO(b"x" * 1000), 2**28 + 1, {})
    assert caught.value.status == 413


def test_a_node_gets_code_of_its_own_attempts_alone(ada: Person, project: Path) -> None:
    """Its token names no pack, and attempts of others or without code give nothing."""
    script = project / "wait.sh"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)
    made = ada.muster(project, "submit", "--name", "waits", "--code", ".", "--", "./wait.sh")
    assert made.returncode == 0, made.stderr
    (attempt,) = ada.bed.until_state("waits", "Running")["attempts"]
    bed = ada.bed
    assert bed.api is not None

    def asked(node: str, name: str, offset: int = 0, *, api: api_client.ApiClient) -> bytes:
        return api.data(f"/v1/nodes/{node}/code/{name}/{offset}")

    whole = asked(attempt["node"], attempt["id"], api=bed.api)  # an admin may
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert "wait.sh" in archive.getnames()
    assert asked(attempt["node"], attempt["id"], 512, api=bed.api) == whole[512:]
    for node, name in (("another", attempt["id"]), (attempt["node"], "no.1.0.0.main.0.1")):
        with pytest.raises(api_client.ApiError) as caught:
            asked(node, name, api=bed.api)
        assert caught.value.status == 404
    with pytest.raises(api_client.ApiError) as caught:
        asked(attempt["node"], attempt["id"], api=ada.api)
    assert caught.value.status == 403, "a person reads nothing, whose it is too"
    assert ada.muster(project, "cancel", "waits").returncode == 0
    bed.until_state("waits", "Cancelled")
    with pytest.raises(api_client.ApiError) as caught:
        asked(attempt["node"], attempt["id"], api=bed.api)
    assert caught.value.status == 404


GIT = """\
  queue: default
  owner: ada@x.org
  resources: {{cpu: 1, memory: 16Mi}}
  code: {{git: "{url}", revision: {revision}{more}}}
  command: [sh, -c, "cat train.py; git rev-parse HEAD; id -un"]"""


@pytest.fixture
def repository(bed: beds.Bed) -> tuple[str, str]:
    """Somebody's repository, which all may read: its URL and a commit before the newest."""
    work, bare = bed.folder / "origin", bed.folder / "origin.git"
    if not work.exists():
        bed.git("init", "--quiet", str(work))
        for text in ("reviewed", "newer"):
            (work / "part").mkdir(exist_ok=True)
            (work / "part" / "train.py").write_text(f"{text}\n")
            (work / "train.py").write_text(f"{text} at the top\n")
            bed.git("add", "--all", folder=work)
            bed.git("commit", "--quiet", "--message", text, folder=work)
        bed.git("clone", "--quiet", "--bare", str(work), str(bare))
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "nobody:", str(bare)], check=True, timeout=60)
    return f"file://{bare}", bed.git("rev-parse", "HEAD~1", folder=work)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_a_commit_is_fetched_as_the_user_of_the_job(
    bed: beds.Bed, repository: tuple[str, str]
) -> None:
    url, revision = repository
    test_code.commit(
        bed,
        {
            "top.yaml": beds.job("top", GIT.format(url=url, revision=revision, more="")),
            "in.yaml": beds.job("in", GIT.format(url=url, revision=revision, more=", path: part")),
            "no.yaml": beds.job("no", GIT.format(url=url, revision="0" * 40, more="")),
        },
    )
    for name, text in (("top", "reviewed at the top"), ("in", "reviewed")):
        job = bed.until_state(name, "Succeeded", "Failed")
        assert job["state"] == "Succeeded", job["message"]
        assert bed.output(name) == f"{text}\n{revision}\nnobody\n"
    job = bed.until_state("no", "Failed")
    assert "code: `git fetch`" in job["message"]


@pytest.mark.parametrize("revision", ["main", "1f0c7a1"])
def test_a_name_is_no_commit(bed: beds.Bed, repository: tuple[str, str], revision: str) -> None:
    done = test_code.muster(
        bed, bed.folder, "submit", "--set", f"code.git={repository[0]}", "--set",
        f"code.revision={revision}", "--", "true",
    )  # fmt: skip
    assert done.returncode != 0
    assert "--set code.revision: this value does not fit" in done.stderr
