"""Tokens come and go while a server runs, and wrong ones cost only who sends them."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import parser

from agents.link import http_client
from tests.integration.server import parts


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[parts.Served]:
    made = parts.Served(tmp_path, "--token-file", str(parts.own_tokens(tmp_path)))
    try:
        yield made.ready()
    finally:
        made.close()


def muster(served: parts.Served, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of `muster token` on the server's file."""
    command = [sys.executable, "-m", "reconciler.cli.main", "token", *words]
    return subprocess.run(
        [*command, "--tokens", str(served.folder / "own-tokens")],
        capture_output=True,
        text=True,
        check=False,
        timeout=parts.PATIENCE_S,
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
    )


def status(served: parts.Served, token: str, path: str = "/v1/jobs") -> int:
    """The status of a call with a token."""
    return served.client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code


def test_a_token_counts_from_its_creation_until_it_is_revoked(served: parts.Served) -> None:
    made = muster(served, "create", "ada@x.org", "--role", "user", "--expires", "90d")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert made.stdout == f"{token}\n"
    assert token not in (served.folder / "own-tokens").read_text()
    served.until(lambda: status(served, token) == 200)
    listed = muster(served, "list")
    assert "ada@x.org" in listed.stdout
    assert token not in listed.stdout + listed.stderr
    (row,) = [line for line in listed.stdout.splitlines() if "ada@x.org" in line]
    revoked = muster(served, "revoke", row.split()[0])
    assert revoked.returncode == 0, revoked.stderr
    assert revoked.stdout == ""
    served.until(lambda: status(served, token) == 401)
    assert status(served, "the-test") == 200


def test_wrong_tokens_are_answered_late_logged_and_counted(served: parts.Served) -> None:
    began = time.monotonic()
    assert {status(served, f"guess-{number}") for number in range(10)} == {401}
    late_s = time.monotonic() - began
    assert late_s > 1.0  # 0.1 + 0.2 + 0.3 + 0.4 + 0.5
    page = served.client.get("/metrics").text
    counted = {
        sample.labels["reason"]: sample.value
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "muster_api_unauthenticated_total"
    }
    assert counted == {"missing": 0.0, "unknown": 10.0, "expired": 0.0, "signature": 0.0}
    served.end()
    logged = parts.stop(served.process)
    assert "1 call without a valid token from 127.0.0.1, the last: GET '/v1/jobs'" in logged
    assert "guess-" not in logged


def test_others_do_not_wait_for_wrong_tokens(served: parts.Served) -> None:
    for number in range(15):
        status(served, f"guess-{number}")
    with httpx.Client(base_url=served.address, timeout=parts.PATIENCE_S) as other:
        wrong = {"Authorization": "Bearer wrong"}
        with parts.in_background(lambda: other.get("/v1/jobs", headers=wrong)) as late:
            began = time.monotonic()
            assert status(served, "the-test") == 200
            ours_s = time.monotonic() - began
            assert late().status_code == 401
            assert time.monotonic() - began > ours_s


def test_an_agent_uses_a_new_token_without_a_restart(
    served: parts.Served, tmp_path: pathlib.Path
) -> None:
    def create() -> str:
        made = muster(served, "create", "n1", "--role", "node")
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    held = tmp_path / "node-token"
    held.write_text(create())
    held.chmod(0o600)
    link = http_client.Connection(http_client.ControllerTarget(served.address, held))

    def answer() -> int:
        return link.post("/v1/nodes/n1/sync", parts.request("n1"), parts.PATIENCE_S)[0]

    served.until(lambda: answer() != 401)
    (row,) = [one for one in muster(served, "list").stdout.splitlines() if " n1 " in one]
    assert muster(served, "revoke", row.split()[0]).returncode == 0
    served.until(lambda: answer() == 401)
    held.write_text(create())
    served.until(lambda: answer() != 401)
    held.chmod(0o644)
    assert answer() != 401, "the connection is open, so the file is not read"
    link.close()
    with pytest.raises(http_client.LinkError, match="has mode 0644"):
        answer()
