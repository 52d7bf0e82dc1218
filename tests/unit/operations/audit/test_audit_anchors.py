"""A log is compared with the hashes that notes hold, which a chain written anew does not have."""

import contextlib
import io
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from reconciler.changes import notes
from reconciler.cli import main, terminal
from reconciler.desired.git import source
from reconciler.model.values import times
from reconciler.operations.audit import audit_anchors, audit_entries, audit_log
from reconciler.operations.backup import backup_contents

LINES = 12


def entry(number: int, message: str = "") -> audit_entries.AuditEntry:
    return audit_entries.AuditEntry(
        at=1000.0 + number, revision=f"{number:040x}", result="Synced", message=message
    )


class Scene:
    """A repository with commits, a log, and notes on some of the commits."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.repository)], check=True)
        self.log = audit_log.Log(folder / "audit.jsonl")
        for number in range(1, LINES + 1):
            line = self.log.append(entry(number))
            self.git("commit", "-q", "--allow-empty", "-m", f"{number}")
            if number % 3 == 0:
                self.note(line)

    def git(self, *arguments: str, **environment: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        command = ["git", "-C", str(self.repository), *identity, *arguments]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=os.environ | environment
        )
        return done.stdout.strip()

    def note(self, line: audit_log.ChainEntry) -> None:
        with contextlib.closing(source.GitSource(str(self.repository))) as opened:
            text = f"muster: Synced with 0 errors; audit {line.number} {line.hash}"
            notes.write(opened, self.git("rev-parse", "HEAD"), text)

    def date_notes(self) -> None:
        """Have the notes on lines up to 6 written at 1000 s, and all others at 3000 s."""
        first = self.git("rev-list", "--reverse", notes.REFERENCE).split()[1]
        commit = ""
        for tree, moment in ((first, 1000), (notes.REFERENCE, 3000)):
            made = self.git(
                *(
                    "commit-tree",
                    "-m",
                    "notes",
                    f"{tree}^{{tree}}",
                    *(["-p", commit] * bool(commit)),
                ),
                GIT_COMMITTER_DATE=f"@{moment} +0000",
            )
            commit = made
        self.git("update-ref", notes.REFERENCE, commit)

    def verify(self, *words: str) -> tuple[object, str]:
        """Run the command; returns its exit status, and what it says on stderr."""
        said = io.StringIO()
        argv = ["muster", "audit", "verify", "--file", str(self.log.path), *words]
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
            patch.setattr("sys.argv", [*argv, "--repo", str(self.repository)])
            with pytest.raises(SystemExit) as left:
                main.main()
        return left.value.code, " ".join(said.getvalue().split())

    def compare(self) -> audit_anchors.AnchorComparison:
        with contextlib.closing(source.GitSource(str(self.repository))) as opened:
            return audit_anchors.compare(self.log, audit_anchors.read(opened))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_log_agrees_with_its_notes(scene: Scene) -> None:
    assert scene.compare() == (4, 0, [], 0, 0, LINES)


def test_notes_that_somebody_removed_agree_again_as_a_whole(scene: Scene) -> None:
    scene.git("update-ref", "-d", notes.REFERENCE)
    assert scene.compare().compared == 0
    with contextlib.closing(source.GitSource(str(scene.repository))) as opened:
        assert notes.restore(opened)
    assert scene.compare() == (4, 0, [], 0, 0, LINES)


def test_a_chain_that_was_written_anew_does_not(scene: Scene) -> None:
    scene.log.path.unlink()
    anew = audit_log.Log(scene.log.path)
    for number in range(1, LINES + 1):
        anew.append(entry(number, "nothing happened" if number == 5 else ""))
    assert not anew.verify().wrong  # in itself it is intact
    found = scene.compare()
    assert found.compared == 1
    assert [words.split(",")[0] for words in found.wrong] == ["line 6", "line 9", "line 12"]


def test_a_log_that_was_cut_does_not(scene: Scene) -> None:
    lines = scene.log.path.read_bytes().splitlines(keepends=True)
    scene.log.path.write_bytes(b"".join(lines[:10]))
    found = scene.compare()
    assert found.compared == 3
    assert len(found.wrong) == 1
    assert found.wrong[0].endswith("is missing: the log ends with line 10")


def test_lines_that_were_dropped_are_counted_apart(scene: Scene) -> None:
    lines = scene.log.path.read_bytes().splitlines(keepends=True)
    scene.log.path.write_bytes(b"".join(lines[4:]))
    assert scene.compare() == (3, 1, [], 0, 0, LINES)


@pytest.mark.parametrize("is_anew", [False, True])
def test_the_command_says_it(
    is_anew: bool, scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_anew:
        scene.log.path.unlink()
        for number in range(1, LINES + 1):
            audit_log.Log(scene.log.path).append(entry(number, "another"))
    words = ["--file", str(scene.log.path), "--repo", str(scene.repository)]
    monkeypatch.setattr("sys.argv", ["muster", "audit", "verify", *words])
    with pytest.raises(SystemExit) as left:
        main.main()
    said = " ".join(capsys.readouterr().err.split())
    if is_anew:
        assert left.value.code == terminal.ERROR
        assert "has another hash: it, or a line before it, was made anew" in said
    else:
        assert not left.value.code
        assert "4 hashes in notes of" in said
        assert said.endswith("agree")


def test_a_repository_without_notes_proves_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.git("update-ref", "-d", "refs/notes/muster")
    words = ["--file", str(scene.log.path), "--repo", str(scene.repository)]
    monkeypatch.setattr("sys.argv", ["muster", "audit", "verify", *words])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == terminal.ERROR
    assert "has no notes of Muster with a hash of the log" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_log_that_begins_after_all_notes_proves_nothing(scene: Scene) -> None:
    lines = scene.log.path.read_bytes().splitlines(keepends=True)
    scene.log.append(entry(LINES + 1))
    scene.log.path.write_bytes(scene.log.path.read_bytes().splitlines(keepends=True)[len(lines)])
    with pytest.raises(audit_anchors.AnchorError, match="nothing was compared: the notes of"):
        audit_anchors.compare_files(scene.log.path, scene.repository)


def test_a_folder_that_is_no_repository_is_named(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(audit_anchors.AnchorError, match=f"--repo {tmp_path}: "):
        audit_anchors.compare_files(scene.log.path, tmp_path)


class LostScene(Scene):
    """A log that was lost, and a new one, which begins with the newest revision."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log.path.rename(folder / "lost.jsonl")
        self.log = audit_log.Log(folder / "audit.jsonl")
        self.begins = self.append(LINES + 1)
        for number in range(LINES + 2, LINES + 6):
            self.append(number)

    def append(self, number: int) -> str:
        """Make a revision that the new log has, with its note; returns it."""
        self.git("commit", "-q", "--allow-empty", "-m", f"{number}")
        revision = self.git("rev-parse", "HEAD")
        self.note(self.log.append(msgspec.structs.replace(entry(number), revision=revision)))
        return revision


@pytest.fixture
def lost(tmp_path: Path) -> LostScene:
    return LostScene(tmp_path)


def test_after_the_loss_of_a_log_the_new_one_agrees_with_its_own_notes(lost: LostScene) -> None:
    code, said = lost.verify()
    assert code == terminal.ERROR
    assert said.endswith(f"If you know that the log before was lost: --begins {lost.begins[:12]}")
    code, said = lost.verify("--begins", lost.begins[:12])
    assert not code
    assert "5 hashes in notes of" in said
    assert "4 notes before" in said
    found = audit_anchors.compare_files(lost.log.path, lost.repository, lost.begins)
    assert found == (5, 0, [], 4, 0, 5)


def test_what_is_written_anew_later_does_not_drown(lost: LostScene) -> None:
    last = lost.git("rev-parse", "HEAD")
    lost.log.path.unlink()
    anew = audit_log.Log(lost.log.path)
    for number in range(1, 6):
        anew.append(entry(number, "nothing happened" if number == 4 else ""))
    code, said = lost.verify("--begins", lost.begins)
    assert code == terminal.ERROR
    assert f"line 5, which the note on {last[:12]} names, has another hash" in said
    assert "--begins" not in said


@pytest.mark.parametrize("begins", ["nothing", "-x", "--all", ""])
def test_a_log_begins_with_a_revision(lost: LostScene, begins: str) -> None:
    with pytest.raises(audit_anchors.AnchorError, match=r"--begins: found .*, expected a rev"):
        audit_anchors.compare_files(lost.log.path, lost.repository, begins)


def cut(scene: Scene, lines: int) -> None:
    """Keep the first lines of the log alone."""
    kept = scene.log.path.read_bytes().splitlines(keepends=True)[:lines]
    scene.log.path.write_bytes(b"".join(kept))


def back_up(scene: Scene, moment: float) -> None:
    """Make the folder of the log that of a backup which was made at a time."""
    (scene.log.path.parent / backup_contents.STORE).touch()
    made = backup_contents.Manifest(
        made_at=times.format_time(moment),
        store="sqlite:///store.db",
        files=tuple(
            backup_contents.describe(scene.log.path.parent / name)
            for name in (backup_contents.STORE, audit_log.FILE)
        ),
    )
    path = scene.log.path.parent / backup_contents.MANIFEST
    path.write_bytes(backup_contents.encode(made))


def test_a_backup_of_a_log_that_grew_since_is_whole(scene: Scene) -> None:
    """Lines that notes of later name are not missing in it."""
    scene.date_notes()
    cut(scene, 7)
    code, said = scene.verify()
    assert code == terminal.ERROR, "of a log that is no backup all lines are expected"
    assert "line 9," in said
    back_up(scene, 2000.0)
    code, said = scene.verify()
    assert not code, said
    assert "2 hashes in notes of" in said
    assert "has all lines of then, up to line 7; 2 newer notes were not compared" in said


def test_a_backup_of_a_log_that_was_cut_is_not(scene: Scene) -> None:
    scene.date_notes()
    cut(scene, 5)
    back_up(scene, 2000.0)
    code, said = scene.verify()
    assert code == terminal.ERROR
    assert "line 6, which the note" in said
    assert "is missing: the log ends with line 5" in said
    assert "line 9" not in said


def test_a_log_that_was_cut_in_its_backup_is_not_as_the_manifest_says(scene: Scene) -> None:
    scene.date_notes()
    back_up(scene, 2000.0)
    cut(scene, 7)
    code, said = scene.verify()
    assert code == terminal.ERROR
    assert "audit.jsonl: found" in said


def test_notes_of_the_second_of_a_backup_may_be_newer(scene: Scene) -> None:
    scene.date_notes()
    cut(scene, 7)
    back_up(scene, 3000.0)
    assert not scene.verify()[0]
    back_up(scene, 3001.0)
    assert scene.verify()[0] == terminal.ERROR
