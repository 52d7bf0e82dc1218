"""`muster run` shows all output, late if need be, and says so if it could not."""

import contextlib
import sys
from collections.abc import Iterator

import pytest

from reconciler.cli import retries
from reconciler.cli.jobs import run_output
from reconciler.operations.client import api_client, endpoints
from tests.unit.cli.test_retries import Script, controller, text, told

__all__ = ["controller"]
PATH = "/v1/jobs/train/logs"
CROWDED = told({"error": {"message": "bob reads 32 logs of node n1. To fix: end one"}}, 429)
DONE = told({"job": {"state": "Succeeded", "attempts": [{"task": "main-0", "attempt": 1}]}})


@pytest.fixture
def output(
    controller: tuple[Script, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Script, run_output.RunOutput]]:
    monkeypatch.setattr(run_output, "AGAIN_S", 0.01)
    script, url = controller
    script["/v1/jobs/train"] = [DONE]
    with contextlib.closing(api_client.ApiClient(endpoints.Endpoint(url))) as api:
        yield script, run_output.RunOutput(retries.Patient(api), "train", place_s=0.2)


def test_output_without_a_place_comes_after_the_end(
    output: tuple[Script, run_output.RunOutput], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    script, shown = output
    script[PATH] = [CROWDED, CROWDED, text(b"all of it\n"), text(b"and errors\n")]
    shown.follow("main-0")
    sys.stderr.flush()
    found = capsysbinary.readouterr()
    assert found.out == b""
    assert b"stdout can't be read: bob reads 32 logs" in found.err
    assert b"trying again once the job has ended" in found.err
    shown.finish("main-0")
    assert capsysbinary.readouterr() == (b"all of it\n", b"and errors\n")
    assert [shown.code(status) for status in (0, 3)] == [0, 3]


def test_output_that_finds_no_place_is_told_and_no_success(
    output: tuple[Script, run_output.RunOutput], capsys: pytest.CaptureFixture[str]
) -> None:
    script, shown = output
    script[PATH] = [CROWDED]
    shown.follow("main-0")
    shown.finish("main-0")
    shown.print_rest("main-1")
    assert shown.missing == ["stdout", "stderr", "stdout of main-1", "stderr of main-1"]
    assert [shown.code(status) for status in (0, 3, 124)] == [125, 3, 124]
    found = capsys.readouterr()
    assert found.out == ""
    assert "not all output was shown (stdout, stderr, stdout of main-1" in found.err
    assert "muster logs train" in found.err


def test_output_that_broke_off_is_not_shown_twice(
    output: tuple[Script, run_output.RunOutput], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    script, shown = output
    script[PATH] = [text(b"half of", whole=False), CROWDED, text(b"")]
    shown.follow("main-0")
    shown.finish("main-0")
    assert capsysbinary.readouterr().out == b"half of"
    assert shown.code(0) == 125
