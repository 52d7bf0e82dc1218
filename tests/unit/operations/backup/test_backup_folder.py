"""A backup holds the store and what belongs to it, shows what was changed, and costs nothing."""

import hashlib
import os
import pathlib
import pwd
import stat
import subprocess
import tempfile
from collections.abc import Iterator

import msgspec
import pytest

from reconciler import store
from reconciler.operations.audit import audit_entries, audit_log
from reconciler.operations.backup import backup_contents, backup_folder
from reconciler.server.code import pack_store
from reconciler.store import backup
from tests.unit.store import samples

NOW = 1_800_000_000.0
NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root restores for somebody else")


class StateFolder:
    """A controller's folder with a live store, an audit log in two parts, and secrets."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.url = f"sqlite:///{folder / 'store.db'}"
        self.store = store.Store.open(self.url)
        epoch = self.store.lead("one", 50.0)
        self.store.commit(epoch, 1, samples.cycle(jobs=(samples.job(),)))
        self.log = audit_log.Log(folder / audit_log.FILE, part_bytes_max=600)
        for at in range(5):
            self.log.append(audit_entries.AuditEntry(float(at), f"{at:040x}", "Synced"))
        (folder / "notified.json").write_text('{"sent": 3}')
        (folder / "tokens").write_text("secret")
        (folder / "server.log").write_text("…")
        (folder / "mirror-1.git").mkdir()
        (folder / "notify").mkdir()


@pytest.fixture
def live(tmp_path: pathlib.Path) -> Iterator[StateFolder]:
    made = StateFolder(tmp_path / "state")
    yield made
    made.store.close()


def test_all_that_cannot_be_made_again_is_copied_and_secrets_are_named(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    target = tmp_path / "copy"
    made = backup_folder.save(live.url, live.folder, target, NOW)
    parts = [path.name for path in live.log.parts()]
    assert parts
    names = sorted(["store.db", "notified.json", "audit.jsonl", *parts])
    assert [one.name for one in made.files] == names
    assert sorted(path.name for path in target.iterdir()) == sorted([*names, "manifest.json"])
    assert made.left_out == ("notify", "tokens")
    assert backup_folder.check(target) == made
    modes = {stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()}
    assert (modes, stat.S_IMODE(target.stat().st_mode)) == ({0o600}, 0o700)
    assert not list(tmp_path.glob("*.partial"))


def test_a_restore_brings_all_of_it_to_an_empty_place(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    place = tmp_path / "new"
    place.mkdir()
    url = f"sqlite:///{place / 'store.db'}"
    done = backup_folder.restore(tmp_path / "copy", url, place)
    assert sorted(done.restored) == sorted(path.name for path in place.iterdir())
    assert done.kept == ()
    opened = store.Store.open(url)
    assert opened.load().jobs == {"train": samples.job()}
    opened.close()
    log = audit_log.Log(place / audit_log.FILE)
    assert log.verify() == live.log.verify()
    assert log.append(audit_entries.AuditEntry(9.0, "9" * 40, "Synced")).number == 6


def test_what_is_in_the_folder_stays_and_a_store_is_not_overwritten(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    live.log.append(audit_entries.AuditEntry(9.0, "9" * 40, "Synced"))
    newer = live.log.path.read_bytes()
    with pytest.raises(backup_contents.BackupError, match="exists and is not overwritten"):
        backup_folder.restore(tmp_path / "copy", live.url, live.folder)
    live.store.close()
    for path in live.folder.glob("store.db*"):
        path.unlink()
    done = backup_folder.restore(tmp_path / "copy", live.url, live.folder)
    assert "audit.jsonl" in done.kept
    assert live.log.path.read_bytes() == newer
    assert (live.folder / "store.db").exists()


def test_a_line_that_is_being_written_is_left_out(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    whole = live.log.path.read_bytes()
    with live.log.path.open("ab") as file:
        file.write(b'{"number": 6, "half')
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    assert (tmp_path / "copy" / "audit.jsonl").read_bytes() == whole


def _change(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def _break_chain(folder: pathlib.Path) -> None:
    """Change a line and the manifest with it: checksums can be made anew, the chain can't."""
    path = folder / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"Synced"', b'"Unknown"', 1))
    found = backup_contents.read(folder)
    files = [backup_contents.describe(folder / one.name) for one in found.files]
    manifest = msgspec.structs.replace(found, files=tuple(files))
    (folder / "manifest.json").write_bytes(backup_contents.encode(manifest))


def _link(path: pathlib.Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


FAULTS = {
    "link": (lambda copy: _link(copy / "notified.json"), "notified.json can't be read"),
    "pipe": (lambda copy: _pipe(copy / "notified.json"), "notified.json is no file"),
    "changed": (lambda copy: _change(copy / "store.db"), "store.db: found SHA-256"),
    "shorter": (lambda copy: os.truncate(copy / "notified.json", 3), "found 3 bytes, expected 11"),
    "gone": (lambda copy: (copy / "notified.json").unlink(), "notified.json can't be read"),
    "no list": (lambda copy: (copy / "manifest.json").unlink(), "is no backup: manifest.json"),
    "odd list": (lambda copy: (copy / "manifest.json").write_text("{}"), "manifest.json can't be"),
}


@pytest.mark.parametrize(("damage", "message"), FAULTS.values(), ids=list(FAULTS))
def test_a_backup_that_is_not_whole_is_neither_accepted_nor_restored(
    live: StateFolder, tmp_path: pathlib.Path, damage: object, message: str
) -> None:
    copy = tmp_path / "copy"
    backup_folder.save(live.url, live.folder, copy, NOW)
    assert callable(damage)
    damage(copy)
    place = tmp_path / "new"
    place.mkdir()
    with pytest.raises(backup_contents.BackupError, match=message):
        backup_folder.check(copy)
    with pytest.raises(backup_contents.BackupError, match=message):
        backup_folder.restore(copy, f"sqlite:///{place / 'store.db'}", place)
    assert not list(place.iterdir())


def test_what_is_changed_after_the_check_is_not_restored(
    live: StateFolder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    backup_folder.save(live.url, live.folder, copy, NOW)
    place = tmp_path / "new"
    place.mkdir()
    problems = backup_contents.problems

    def then_changed(folder: pathlib.Path, manifest: backup_contents.Manifest) -> list[str]:
        found = problems(folder, manifest)
        _change(copy / "notified.json")
        return found

    monkeypatch.setattr(backup_contents, "problems", then_changed)
    with pytest.raises(backup_contents.BackupError, match="was changed while it was restored"):
        backup_folder.restore(copy, f"sqlite:///{place / 'store.db'}", place)
    assert not (place / "notified.json").exists()


def test_a_check_goes_along_the_chains(live: StateFolder, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy"
    backup_folder.save(live.url, live.folder, copy, NOW)
    _break_chain(copy)
    with pytest.raises(backup_contents.BackupError, match=r"audit\.jsonl: line 5: it was changed"):
        backup_folder.check(copy)


ODD_NAMES = [
    "../evil",
    "tokens",
    "/etc/passwd",
    "audit-../x.jsonl",
    "audit-\0.jsonl",
    "audit-\n.jsonl",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_list_names_nothing_but_files_of_backups(
    live: StateFolder, tmp_path: pathlib.Path, name: str
) -> None:
    copy = tmp_path / "copy"
    made = backup_folder.save(live.url, live.folder, copy, NOW)
    odd = backup_contents.BackupFile(name, 0, "")
    manifest = msgspec.structs.replace(made, files=(*made.files, odd))
    (copy / "manifest.json").write_bytes(backup_contents.encode(manifest))
    with pytest.raises(backup_contents.BackupError, match="which no backup holds"):
        backup_folder.check(copy)


def test_a_list_without_the_store_is_not_whole(live: StateFolder, tmp_path: pathlib.Path) -> None:
    """Nothing would say what the store has to hold, or that it has to be there."""
    copy = tmp_path / "copy"
    made = backup_folder.save(live.url, live.folder, copy, NOW)
    (copy / "manifest.json").write_bytes(
        backup_contents.encode(msgspec.structs.replace(made, files=made.files[:1]))
    )
    _change(copy / "store.db")
    place = tmp_path / "new"
    place.mkdir()
    with pytest.raises(backup_contents.BackupError, match=r"found no store\.db in the list"):
        backup_folder.check(copy)
    with pytest.raises(backup_contents.BackupError, match=r"found no store\.db in the list"):
        backup_folder.restore(copy, f"sqlite:///{place / 'store.db'}", place)
    assert list(place.iterdir()) == []


def test_nothing_is_restored_beside_what_would_be_taken_for_a_part_of_it(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    place = tmp_path / "new"
    place.mkdir()
    for end in ("-wal", "-shm", "-journal"):
        beside = place / f"store.db{end}"
        beside.touch()
        with pytest.raises(backup_contents.BackupError, match=f"db{end} exists and is not"):
            backup_folder.restore(tmp_path / "copy", f"sqlite:///{place / 'store.db'}", place)
        beside.unlink()
    assert list(place.iterdir()) == []


def test_nothing_is_restored_below_a_controller_that_is_alive(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    """It would go on with the files that were moved away, and its server with the restored ones."""
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    away = tmp_path / "away"
    away.mkdir()
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (live.folder / name).rename(away / name)
    with pytest.raises(backup_contents.BackupError, match="which is alive; stop it first"):
        backup_folder.restore(tmp_path / "copy", live.url, live.folder)
    assert not (live.folder / "store.db").exists()
    live.store.close()
    assert "store.db" in backup_folder.restore(tmp_path / "copy", live.url, live.folder).restored


def test_what_a_broken_off_copy_left_says_what_to_do(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "copy.partial").mkdir()
    with pytest.raises(backup_contents.BackupError, match=r"broken off\. To fix: remove it"):
        backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    (tmp_path / "copy.partial").rmdir()
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    place = tmp_path / "new"
    place.mkdir()
    (place / "store.db.partial").touch()
    with pytest.raises(backup_contents.BackupError, match=r"broken off\. To fix: remove it"):
        backup_folder.restore(tmp_path / "copy", f"sqlite:///{place / 'store.db'}", place)
    assert [path.name for path in place.iterdir()] == ["store.db.partial"]


def test_a_list_of_a_newer_form_says_what_reads_it(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    made = backup_folder.save(live.url, live.folder, copy, NOW)
    newer = msgspec.structs.replace(made, format=2)
    (copy / "manifest.json").write_bytes(backup_contents.encode(newer))
    with pytest.raises(backup_contents.BackupError, match="found format 2, expected at most 1"):
        backup_folder.check(copy)


def test_a_file_of_an_earlier_version_is_restored(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    backup.backup(live.url, tmp_path / "old.db")
    place = tmp_path / "new"
    place.mkdir()
    done = backup_folder.restore(tmp_path / "old.db", f"sqlite:///{place / 'store.db'}", place)
    assert (done.manifest, done.restored) == (None, ("store.db",))


@pytest.fixture
def home() -> Iterator[pathlib.Path]:
    """A folder that everybody reaches and root alone changes."""
    with tempfile.TemporaryDirectory(dir="/var/lib") as made:
        path = pathlib.Path(made)
        path.chmod(0o755)
        yield path


def _folder_of(user: pwd.struct_passwd, path: pathlib.Path) -> pathlib.Path:
    path.mkdir()
    os.chown(path, user.pw_uid, user.pw_gid)
    return path


def _restore_into(live: StateFolder, place: pathlib.Path) -> backup_folder.RestoreResult:
    copy = live.folder.with_name("copy")
    if not copy.exists():
        backup_folder.save(live.url, live.folder, copy, NOW)
    return backup_folder.restore(copy, f"sqlite:///{place / 'store.db'}", place)


@as_root
def test_restored_files_belong_to_who_owns_the_folder(
    live: StateFolder, home: pathlib.Path
) -> None:
    place = _folder_of(NOBODY, home / "state")
    done = _restore_into(live, place)
    assert done.owner == (NOBODY.pw_uid, NOBODY.pw_gid)
    assert sorted(done.restored) == sorted(path.name for path in place.iterdir())
    assert {path.stat().st_uid for path in place.iterdir()} == {NOBODY.pw_uid}
    opened = store.Store.open(f"sqlite:///{place / 'store.db'}")
    assert opened.load().jobs == {"train": samples.job()}
    opened.close()
    again = place.with_name("again")
    place.rename(again)
    with pytest.raises(backup_contents.BackupError, match="exists and is not overwritten"):
        _restore_into(live, again)


@as_root
def test_root_is_not_led_elsewhere_by_the_owner_of_a_folder(
    live: StateFolder, home: pathlib.Path
) -> None:
    (home / "roots").mkdir()
    above = _folder_of(NOBODY, home / "users")
    (above / "state").symlink_to(home / "roots")
    os.lchown(above / "state", NOBODY.pw_uid, NOBODY.pw_gid)
    for place in (above / "state", home / "by-link"):
        if place.name == "by-link":
            place.symlink_to("users/state")
        with pytest.raises(backup_contents.BackupError, match=r"as nobody: .* Permission denied"):
            _restore_into(live, place)
    assert not list((home / "roots").iterdir())


@as_root
def test_a_folder_of_several_users_or_of_everybody_is_refused(
    live: StateFolder, home: pathlib.Path
) -> None:
    above = _folder_of(NOBODY, home / "users")
    place = _folder_of(pwd.getpwnam("games"), above / "state")
    with pytest.raises(backup_contents.BackupError, match=r"users to nobody, .*state to games"):
        _restore_into(live, place)
    (home / "open").mkdir()
    (home / "open").chmod(0o1777)
    with pytest.raises(backup_contents.BackupError, match="open may be changed by everybody"):
        _restore_into(live, home / "open")
    (home / "open" / "state").mkdir()  # nobody else exchanges what lies below a sticky folder
    assert _restore_into(live, home / "open" / "state").owner is None
    (home / "loop").symlink_to("loop")
    with pytest.raises((backup_contents.BackupError, OSError)):
        _restore_into(live, home / "loop")


def test_a_store_in_use_is_no_backup(live: StateFolder, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "new"
    place.mkdir()
    with pytest.raises(backup_contents.BackupError, match=r"store\.db-wal beside it"):
        backup_folder.restore(live.folder / "store.db", f"sqlite:///{place / 'store.db'}", place)


def test_nothing_is_left_of_a_backup_that_fails(live: StateFolder, tmp_path: pathlib.Path) -> None:
    with pytest.raises(backup_contents.BackupError, match="there is no file"):
        backup_folder.save(f"sqlite:///{tmp_path / 'gone.db'}", live.folder, tmp_path / "c", NOW)
    (tmp_path / "there").mkdir()
    with pytest.raises(backup_contents.BackupError, match="exists and is not overwritten"):
        backup_folder.save(live.url, live.folder, tmp_path / "there", NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "there"]


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A disk of a few pages, less than a store has."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_and_keeps_nothing(
    live: StateFolder, tmp_path: pathlib.Path, small_disk: pathlib.Path
) -> None:
    """It is not that of the store that is copied, where nobody has to make room."""
    with pytest.raises(
        backup_contents.BackupError, match=r"small/copy\.partial has no room for it"
    ):
        backup_folder.save(live.url, live.folder, small_disk / "copy", NOW)
    assert list(small_disk.iterdir()) == []
    backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    place = small_disk / "new"
    place.mkdir()
    with pytest.raises(
        backup_contents.BackupError, match=r"small/new/store\.db\.partial: No space"
    ):
        backup_folder.restore(tmp_path / "copy", f"sqlite:///{place / 'store.db'}", place)
    assert list(place.iterdir()) == []


def test_code_of_jobs_is_restored_with_who_sent_it(
    live: StateFolder, tmp_path: pathlib.Path
) -> None:
    digest = f"sha256:{hashlib.sha256(b'code').hexdigest()}"
    sent = pack_store.SentPack(digest, "ada@x.org", ("ada@x.org",), 4)
    with pack_store.PackStore(live.folder).receive(sent) as incoming:
        incoming.add(b"code")
    (live.folder / "code-0123.part").write_text("being sent")
    made = backup_folder.save(live.url, live.folder, tmp_path / "copy", NOW)
    assert made.left_out == ("notify", "tokens")
    (tmp_path / "new").mkdir()
    url = f"sqlite:///{tmp_path / 'new' / 'store.db'}"
    backup_folder.restore(tmp_path / "copy", url, tmp_path / "new")
    assert pack_store.PackStore(tmp_path / "new").piece(digest, "ada@x.org", 0) == b"code"
