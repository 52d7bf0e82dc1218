"""A forge says that the repository has changed, and its signature proves that it is the forge."""

import hashlib
import hmac
import json
import pathlib
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from reconciler.model.protocol import loop_messages
from reconciler.server.auth import hook_signatures
from tests.integration.server import parts

SECRET = "c0ffee-and-more-than-sixteen"
BODY = json.dumps({"ref": "refs/heads/main"}).encode()


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[parts.Served]:
    path = tmp_path / "hook-secret"
    path.touch(0o600)
    path.write_text(f"{SECRET}\n")
    made = parts.Served(tmp_path, "--hook-secret", str(path))
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.fixture
def forge(served: parts.Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, timeout=parts.PATIENCE_S) as client:
        yield client


def digest(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def post(forge: httpx.Client, headers: dict[str, str], body: bytes = BODY) -> httpx.Response:
    return forge.post("/v1/hooks/git", content=body, headers=headers)


GENUINE = (
    {"X-Hub-Signature-256": f"sha256={digest(BODY)}"},
    {"X-Gitlab-Token": SECRET},
    {"X-Gitea-Signature": digest(BODY)},
    {"X-Forgejo-Signature": digest(BODY)},
    {"X-Gitea-Signature": digest(BODY), "X-Hub-Signature-256": f"sha256={digest(BODY)}"},
)
WRONG: tuple[dict[str, str], ...] = (
    {"X-Hub-Signature-256": f"sha256={digest(BODY, 'another secret')}"},
    {"X-Hub-Signature-256": f"sha256={digest(b'another body')}"},
    {"X-Hub-Signature-256": "sha256="},
    {"X-Hub-Signature": "sha1=da39a3ee5e6b4b0d3255bfef95601890afd80709"},
    {"X-Gitlab-Token": f"{SECRET}x"},
    {"X-Gitlab-Token": ""},
    {"X-Gitlab-Token": digest(BODY)},
    {"X-Gitea-Signature": SECRET},
    {},
)


@pytest.mark.parametrize("headers", GENUINE)
def test_each_forge_is_heard(
    served: parts.Served, forge: httpx.Client, headers: dict[str, str]
) -> None:
    answer = post(forge, headers | {"Content-Type": "application/x-www-form-urlencoded"})
    assert (answer.status_code, answer.json()) == (202, {"told": True})
    served.loop.wait(lambda heard: loop_messages.Hint() in heard)


def test_wrong_signatures_are_refused_counted_and_written_down(
    served: parts.Served, forge: httpx.Client
) -> None:
    assert {post(forge, headers).status_code for headers in WRONG} == {401}
    signed = sum(bool(headers) and "X-Hub-Signature" not in headers for headers in WRONG)
    page = served.client.get("/metrics").text
    assert f'muster_api_unauthenticated_total{{reason="signature"}} {signed}.0\n' in page

    def entries() -> list[dict[str, str]]:
        found: list[dict[str, str]] = served.client.get("/v1/audit/access").json()["items"]
        return [one for one in found if one["request"] == "POST /v1/hooks/git"]

    served.until(lambda: bool(entries()))
    assert entries()[-1]["action"] == "Unauthenticated"
    assert "(signature)" in entries()[-1]["message"]
    # one that counts comes after them all, so that theirs would have been heard before
    assert post(forge, GENUINE[0]).status_code == 202
    assert served.loop.wait(lambda heard: heard.count(loop_messages.Hint())) == 1


def test_a_token_is_as_good_and_a_node_is_nobody(served: parts.Served, forge: httpx.Client) -> None:
    assert post(forge, parts.ADMIN).status_code == 202
    assert post(forge, {"Authorization": "Bearer wrong", **GENUINE[0]}).status_code == 401
    assert served.client.post("/v1/hooks/git").status_code == 202, "commands send no body"


def test_the_body_is_bounded_and_never_kept(served: parts.Served, forge: httpx.Client) -> None:
    large = b"x" * (hook_signatures.BODY_BYTES_MAX + 1)
    headers = {"X-Hub-Signature-256": f"sha256={digest(large)}"}
    refused = post(forge, headers, large)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "TooLarge")
    most = large[:-1]
    assert post(forge, {"X-Hub-Signature-256": f"sha256={digest(most)}"}, most).status_code == 202
    for line in pathlib.Path(f"/proc/{served.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            assert int(line.split()[1]) < 400 * 2**10


def test_a_new_secret_counts_at_once_and_an_open_file_never(
    served: parts.Served, forge: httpx.Client
) -> None:
    path = served.folder / "hook-secret"
    path.write_text("another-secret-of-the-forge\n")
    assert post(forge, GENUINE[1]).status_code == 401
    assert post(forge, {"X-Gitlab-Token": "another-secret-of-the-forge"}).status_code == 202
    path.chmod(0o644)
    answer = post(forge, {"X-Gitlab-Token": "another-secret-of-the-forge"})
    assert answer.status_code == 503
    assert post(forge, parts.ADMIN).status_code == 202
    served.end()
    assert "has mode 0644: others may read it" in parts.stop(served.process)


def test_the_secret_is_no_argument(served: parts.Served) -> None:
    command = subprocess.check_output(["ps", "-ww", "-o", "args=", "-p", str(served.process.pid)])
    assert SECRET.encode() not in command
    environment = pathlib.Path(f"/proc/{served.process.pid}/environ").read_bytes()
    assert SECRET.encode() not in environment
