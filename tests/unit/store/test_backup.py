"""A backup of a live store restores to what was committed, and overwrites nothing."""

import pathlib
from collections.abc import Iterator

import pytest

from reconciler import store
from reconciler.store import backup
from tests.unit.store import samples


@pytest.fixture
def live(tmp_path: pathlib.Path) -> Iterator[store.Store]:
    made = store.Store.open(f"sqlite:///{tmp_path / 'muster.db'}")
    made.commit(made.lead("one", 50.0), 1, samples.cycle(jobs=(samples.job(),)))
    yield made
    made.close()


def _restore(copy: pathlib.Path, url: str, sha256: str = "") -> None:
    with copy.open("rb") as source:
        backup.restore(source, url, sha256=sha256)


def test_a_live_store_is_copied_and_restored(live: store.Store, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy.db"
    assert backup.backup(live.reader.url, copy) == copy.stat().st_size
    url = f"sqlite:///{tmp_path / 'restored.db'}"
    _restore(copy, url)
    restored = store.Store.open(url)
    assert restored.lead("two", 60.0) == 60
    assert restored.load().jobs == {"train": samples.job()}
    restored.close()
    assert not list(tmp_path.glob("*.partial*"))


def test_nothing_is_overwritten(live: store.Store, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy.db"
    backup.backup(live.reader.url, copy)
    with pytest.raises(store.StoreError, match="exists and is not overwritten"):
        backup.backup(live.reader.url, copy)
    with pytest.raises(store.StoreError, match="exists and is not overwritten"):
        _restore(copy, live.reader.url)
    assert not list(tmp_path.glob("*.partial*"))


def test_what_is_no_backup_is_refused(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'restored.db'}"
    (tmp_path / "copy.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(store.DamagedError):
        _restore(tmp_path / "copy.db", url)
    (tmp_path / "empty.db").touch()
    with pytest.raises(store.DamagedError, match="no store of Muster"):
        _restore(tmp_path / "empty.db", url)
    with pytest.raises(store.StoreError, match=r"empty\.db: it was changed"):
        _restore(tmp_path / "empty.db", url, "0" * 64)
    assert not (tmp_path / "restored.db").exists()
