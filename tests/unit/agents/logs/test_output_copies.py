"""Copies of output in files of users: whole, over rotations and agents, and nowhere else."""

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agents.host import acting_user
from agents.logs import log_file, output_copies, output_paths
from reconciler.model.observed.output_files import OutputFiles
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState

WORDS = {"x": "train", "j": "123456789", "A": "2", "a": "7", "t": "0", "N": "n", "u": "ada"}


class Site:
    """A node's logs, and the folder of a user."""

    def __init__(self, root: Path) -> None:
        self.root, self.logs, self.home = root / "node", root / "node" / "logs", root / "home"
        self.logs.mkdir(parents=True)
        self.home.mkdir()
        self.place = output_copies.FilePlace(None, str(self.root), str(self.root / "shared"))
        self.ended = threading.Event()
        self.copies = self.anew()

    def anew(self) -> output_copies.OutputCopies:
        """What a new agent makes of the same folders."""
        made = output_copies.OutputCopies(self.logs, every_s=0.01)
        made.resume(lambda _: self.ended.is_set())
        return made

    def begin(self, files: OutputFiles, **words: str) -> None:
        copy = output_paths.copy_of(files, WORDS | words, str(self.home), self.place)
        assert copy is not None
        self.copies.begin("a.1", copy, empties=not files.appends)

    def log(self, text: str, stream: str = "stdout") -> None:
        with (self.logs / f"a.1.{stream}").open("a") as log:
            log.write(text)

    def finish(self) -> None:
        """End the task, and wait until its note has gone, which is the last that a copy does."""
        self.ended.set()
        until(lambda: not list(self.logs.glob("*.files")))


def until(holds: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(6000):
        if holds():
            return
        waited.wait(0.01)
    raise AssertionError("it never came to that")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_output_is_copied_while_it_comes_and_to_its_end(site: Site) -> None:
    site.begin(OutputFiles("%x-%j_%4a.%u", "%N.err%%"))
    site.log("one\n")
    site.log("oh\n", "stderr")
    out, err = site.home / "train-123456789_0007.ada", site.home / "n.err%"
    until(lambda: out.read_text() == "one\n" and err.read_text() == "oh\n")
    site.log("two, without an end")
    site.finish()
    assert out.read_text() == "one\ntwo, without an end"


def test_both_streams_share_a_file_by_lines(site: Site) -> None:
    site.begin(OutputFiles("out"))
    site.log("begun ")
    site.log("warning\n", "stderr")
    out = site.home / "out"
    until(lambda: out.read_text() == "warning\n")
    site.log("and ended\n")
    site.finish()
    assert out.read_text() == "warning\nbegun and ended\n"


def test_an_end_is_told_when_all_is_in_the_file(site: Site) -> None:
    site.begin(OutputFiles("out"))
    other, end = (AttemptReport(f"{name}.1", AttemptState.ENDED) for name in "ba")
    site.log("all\n")
    told: list[tuple[AttemptReport, str]] = []
    passed = site.copies.hold(
        [other, end], lambda report: told.append((report, (site.home / "out").read_text()))
    )
    assert passed == [other]
    until(lambda: bool(told))
    assert told == [(end, "all\n")]


@pytest.mark.parametrize(("appends", "expected"), [(True, "before\nnow\n"), (False, "now\n")])
def test_a_file_is_emptied_or_goes_on(site: Site, appends: bool, expected: str) -> None:
    (site.home / "out").write_text("before\n")
    site.begin(OutputFiles("out", appends=appends))
    site.log("now\n")
    site.finish()
    assert (site.home / "out").read_text() == expected


def test_another_agent_goes_on_where_the_first_was(site: Site) -> None:
    site.begin(OutputFiles("out"))
    site.log("one\n")
    until(lambda: (site.home / "out").read_text() == "one\n")
    note = site.logs / "a.1.files"
    until(lambda: b'"stdout":4' in note.read_bytes())
    kept = note.read_bytes()
    site.finish()
    note.write_bytes(kept)
    site.log("two\n")
    site.anew()
    until(lambda: not note.exists())
    assert (site.home / "out").read_text() == "one\ntwo\n"


def test_what_a_rotation_lost_is_named(site: Site) -> None:
    site.log("lost\nkept\n")
    log_file.turn_over(site.logs / "a.1.stdout", 5)
    site.begin(OutputFiles("out"))
    site.finish()
    assert (site.home / "out").read_text() == "[5 bytes of stdout are missing here]\nkept\n"


def test_a_file_that_cannot_be_written_loses_nothing_and_is_told_with_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.begin(OutputFiles("out"))
    site.log("one\n")
    until(lambda: (site.home / "out").read_text() == "one\n")
    (site.home / "out").unlink()
    (site.home / "out").mkdir()
    site.log("two\n")
    monkeypatch.setattr(output_copies, "HOLD_S_MAX", 0.2)
    told: list[AttemptReport] = []
    site.copies.hold([AttemptReport("a.1", AttemptState.ENDED, message="m")], told.append)
    until(lambda: bool(told))
    assert told[0].message.startswith("m; output is not whole in its file: output file ")
    (site.home / "out").rmdir()
    site.finish()
    assert (site.home / "out").read_text() == "two\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as others")
def test_a_file_is_the_users_and_none_of_somebody_else_is_written(site: Site) -> None:
    user = acting_user.ActingUser("stranger", 12345, 12345)
    place = msgspec.structs.replace(site.place, user=user)
    with tempfile.TemporaryDirectory() as folder:  # nobody else may enter those of the tests
        home = Path(folder)
        home.chmod(0o777)
        os.close(output_copies.open_file(f"{home}/out", place))
        assert (home / "out").stat().st_uid == 12345
        (home / "roots").write_text("")
        (home / "roots").chmod(0o666)
        with pytest.raises(output_copies.OutputFileError, match="belongs to uid 0"):
            output_copies.open_file(f"{home}/roots", place)
        home.chmod(0o755)
        with pytest.raises(output_copies.OutputFileError, match="Permission denied"):
            output_copies.open_file(f"{home}/more", place)
    with acting_user.acting_as(user):  # else neither quotas nor space kept for root bind it
        assert not effective_rights() & 1 << 24
    assert effective_rights() & 1


def effective_rights() -> int:
    status = Path("/proc/thread-self/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16)


def test_only_rank_0_writes_a_path_without_the_rank() -> None:
    place = output_copies.FilePlace(None, "/node", "/node/shared")
    found = output_paths.copy_of(OutputFiles("/o", "/e.%t"), WORDS | {"t": "3"}, "", place)
    assert found is not None
    assert found.paths == {"stderr": "/e.3"}
    assert output_paths.copy_of(OutputFiles("/dev/null"), WORDS, "", place) is None
    with pytest.raises(output_copies.OutputFileError, match="write its full path"):
        output_paths.copy_of(OutputFiles("o"), WORDS, "", place)


def test_no_file_but_the_users_own_is_written(site: Site) -> None:
    (site.home / "other").write_text("mine\n")
    (site.home / "link").symlink_to("other")
    os.mkfifo(site.home / "pipe")
    (site.root / "logs" / "b").write_text("the agent's\n")
    (site.home / "way").symlink_to(site.root / "logs")
    for name, why in (
        ("link", "it is a link"),
        ("pipe", "No such device"),
        ("missing/out", "mkdir -p"),
        ("way/b", "the node's own folder"),
        (f"{site.root}/b", "the node's own folder"),
    ):
        with pytest.raises(output_copies.OutputFileError, match=why):
            site.begin(OutputFiles(name))
    assert (site.home / "other").read_text() == "mine\n"
    assert (site.root / "logs" / "b").read_text() == "the agent's\n"
    (site.root / "shared").mkdir()
    site.begin(OutputFiles(f"{site.root}/shared/out"))
    site.finish()
