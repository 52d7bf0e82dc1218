"""Replays run in processes of their own, one at a time, and never without end."""

import asyncio
from pathlib import Path

import psutil
import pytest

from reconciler.server import errors
from reconciler.server.api import explanations
from reconciler.server.process import worker_processes
from reconciler.store import Store


def _refused(replays: explanations.Replays) -> errors.Failure:
    with pytest.raises(errors.Failure) as refused:
        asyncio.run(replays.explain("train", 5.0, 10))
    return refused.value


def test_a_store_without_a_journal_has_nothing_to_tell(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    assert _refused(explanations.Replays(url)).status == 503, "there is no store at all"
    Store.open(url).close()
    refused = _refused(explanations.Replays(url))
    assert refused.status == 404
    assert "before the first cycle in the journal; it holds nothing" in refused.message


def test_a_replay_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "REPLAY_S_MAX", 0.0)
    refused = _refused(explanations.Replays(f"sqlite:///{tmp_path / 'store.db'}"))
    assert (refused.status, "took longer than" in refused.message) == (503, True)
    left = [child.cmdline() for child in psutil.Process().children()]
    assert not [words for words in left if "reconciler.operations.history.past_reasons" in words]


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "WAITING_MAX", 0)
    assert _refused(explanations.Replays("sqlite:///nowhere.db")).status == 429
