"""The table of ended attempts: each attempt once, in pages, in files that are whole or absent."""

import csv
import importlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reconciler import store
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values.resources import Resources
from reconciler.operations.reports import attempt_files, attempt_forms, attempt_rows
from tests.unit.store import samples

DAY = "1970-01-01"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[store.Store]:
    """Return a store in which 25 attempts have ended, all at few moments, and one goes on."""
    made = store.Store.open(f"sqlite:///{tmp_path / 'muster.db'}")
    job = samples.job(
        "=cmd()", state=JobState.RUNNING, elements=30, labels={"team": "b", "area": "a"}
    )
    over = [
        msgspec.structs.replace(
            samples.attempt(job, one, state=AttemptState.ENDED, exit_code=one % 2, concluded=True),
            ended_at=200.0 + one // 10,
            resources=Resources(2000, 2**30, 500),
        )
        for one in range(25)
    ]
    goes_on = samples.attempt(job, 26, state=AttemptState.RUNNING)
    decided = samples.cycle(jobs=(job,), attempts=(*over, goes_on), nodes=(samples.node(),))
    epoch = made.lead("one", 50.0)
    made.commit(epoch, 1, decided, store.CycleExtras(journal=b"delta"))
    yield made
    made.close()


def pages(of: store.Store, limit: int, day: str = DAY) -> Iterator[list[attempt_rows.AttemptRow]]:
    """Yield the rows of a day in pages."""
    after = ""
    while True:
        found = attempt_rows.page(of.reader, day, after, limit)
        yield found.rows
        if not found.next:
            return
        after = found.next


@pytest.mark.parametrize("limit", [1, 3, 5, 25, 1000])
def test_pages_have_every_ended_attempt_once_and_in_order(opened: store.Store, limit: int) -> None:
    found = [row for rows in pages(opened, limit) for row in rows]
    assert len({row.attempt for row in found}) == len(found) == 25
    assert [row.ended for row in found] == sorted(row.ended for row in found)
    assert list(pages(opened, limit, "1970-01-02")) == [[]]


def test_a_row_says_what_ran_for_whom_and_for_how_long(opened: store.Store) -> None:
    row = next(pages(opened, 1))[0]
    assert (row.job, row.run, row.owner, row.queue) == ("=cmd()", 1, "alice@example.org", "default")
    assert (row.pool, row.node, row.gpus, row.gpu_share) == ("cpu", "n1", 0.5, 0.5)
    assert (row.gpu_model, row.labels) == ("H200", '{"area":"a","team":"b"}')
    assert (row.waited_s, row.ran_s, row.gpu_seconds) == (2.0, 98.0, 49.5)
    assert (row.succeeded, row.reason, row.exit_code) == (True, "Exited", 0)
    assert row.ended == "1970-01-01T00:03:20.000Z"


def test_what_did_not_happen_is_not_zero(opened: store.Store) -> None:
    job = samples.job()
    ended = samples.attempt(job, try_number=2, state=AttemptState.ENDED, concluded=True)
    second = attempt_rows.row_of(ended, job, None)
    assert (second.waited_s, second.ran_s, second.gpu_model) == (None, 1.0, None)
    never = attempt_rows.row_of(
        msgspec.structs.replace(ended, started_at=None, try_number=1, devices=()), None, None
    )
    assert (never.started, never.waited_s, never.ran_s) == (None, None, None)
    assert (never.owner, never.queue, never.submitted, never.gpu_share) == (None,) * 4


@pytest.mark.parametrize("after", ["x", "1", "nobody:x"])
def test_a_place_that_no_page_gave_is_refused(opened: store.Store, after: str) -> None:
    with pytest.raises(ValueError, match="no place in the list"):
        attempt_rows.page(opened.reader, DAY, after, 5)


def test_the_file_is_the_same_each_time_and_no_cell_is_a_formula(
    opened: store.Store, tmp_path: Path
) -> None:
    folder = tmp_path / "out" / "deep"
    written = attempt_files.write_day(folder, DAY, pages(opened, 4), "csv")
    path = written.path
    assert (path.name, written.rows, written.kept) == ("jobs-1970-01-01.csv", 25, 0)
    before = path.read_bytes()
    attempt_files.write_day(folder, DAY, pages(opened, 1000), "csv")
    assert path.read_bytes() == before
    assert [one.name for one in folder.iterdir()] == [path.name]
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == attempt_forms.COLUMNS
    assert {row["job"] for row in rows} == {"'=cmd()"}
    assert [row["succeeded"] for row in rows[:2]] == ["true", "false"]
    assert len(before.splitlines()) == 26, "a line is a row"


def test_own_links_are_followed_on_the_way(opened: store.Store, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    attempt_files.write_day(tmp_path / "link" / "out", DAY, pages(opened, 100), "csv")
    assert [one.name for one in (tmp_path / "real" / "out").iterdir()] == ["jobs-1970-01-01.csv"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of others")
@pytest.mark.parametrize("whose", ["link", "folder"])
@pytest.mark.parametrize("below", ["", "out"])
def test_links_of_others_are_not(
    opened: store.Store, tmp_path: Path, whose: str, below: str
) -> None:
    """Whoever owns a link, or the folder that it is in, says where it leads."""
    inner = tmp_path / "folder"
    inner.mkdir()
    (tmp_path / "real").mkdir()
    (inner / "link").symlink_to(tmp_path / "real")
    os.chown(inner / "link" if whose == "link" else inner, 65534, 65534, follow_symlinks=False)
    with pytest.raises(attempt_forms.TableFileError, match="'link' on the way is a link that"):
        attempt_files.write_day(inner / "link" / below, DAY, pages(opened, 100), "csv")
    assert list((tmp_path / "real").iterdir()) == []


def test_what_is_no_folder_on_the_way_is_told(opened: store.Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(attempt_forms.TableFileError, match="Not a directory"):
        attempt_files.write_day(tmp_path / "file" / "out", DAY, pages(opened, 100), "csv")


def read(path: Path) -> dict[str, dict[str, object]]:
    """Return the rows of a file by attempt."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows: list[dict[str, object]] = list(csv.DictReader(file))
    else:
        rows = importlib.import_module("pyarrow.parquet").read_table(str(path)).to_pylist()
    assert len({row["attempt"] for row in rows}) == len(rows)
    return {str(row["attempt"]): row for row in rows}


FORMS = pytest.mark.parametrize("form", ["csv", "parquet"])


@FORMS
def test_rows_that_only_the_file_has_are_kept(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form
) -> None:
    """A store that was restored from an old copy has fewer rows, and goes on with others."""
    rows = next(pages(opened, 1000))
    path = attempt_files.write_day(tmp_path / "out", DAY, [rows[:20]], form).path
    before = read(path)
    written = attempt_files.write_day(tmp_path / "out", DAY, [rows[:3], rows[22:]], form)
    assert (written.rows, written.kept) == (23, 17)
    after = read(path)
    assert {one: after[one] for one in before} == before
    assert len(after) == 23
    assert list(after) == [of for of in read_all(opened, tmp_path, form) if of in after]
    again = attempt_files.write_day(tmp_path / "out", DAY, [], form)
    assert (again.rows, again.kept) == (23, 23)
    assert read(path) == after
    assert [one.name for one in (tmp_path / "out").iterdir()] == [path.name]


def read_all(of: store.Store, folder: Path, form: attempt_forms.Form) -> list[str]:
    """Return the attempts of the day in the order of a file."""
    return list(read(attempt_files.write_day(folder / "all", DAY, pages(of, 9), form).path))


@FORMS
@pytest.mark.parametrize("lost", ["owner", "queue", "gpu_model", "used_cpu_s", "labels"])
def test_what_is_forgotten_stays_and_what_is_newer_replaces(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form, lost: str
) -> None:
    """Runs and nodes are forgotten before attempts, and some people don't see measured use."""
    full = [
        msgspec.structs.replace(row, gpu_model="NVIDIA H100", owner="ada", queue="research")
        for row in next(pages(opened, 1000))
    ]
    path = attempt_files.write_day(tmp_path, DAY, [full], form).path
    before = read(path)
    poor = msgspec.structs.replace(
        full[0], **{lost: "{}" if lost == "labels" else None}, pool="gpu", read_bytes=7
    )
    written = attempt_files.write_day(tmp_path, DAY, [[poor, *full[1:]]], form)
    assert written.kept == 0, "no row is the file's alone"
    name = next(of for of in before if of.lstrip("'") == full[0].attempt)
    newer = {"pool": "gpu", "read_bytes": "7" if form == "csv" else 7}
    assert read(path) == before | {name: before[name] | newer}


LOST = {"succeeded": False, "reason": "Lost", "exit_code": None, "gpu_seconds": 0.0, "ran_s": 1.0}


@FORMS
@pytest.mark.parametrize("reason", ["Lost", "NodeLost"])
def test_a_store_of_the_past_takes_no_end_back(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form, reason: str
) -> None:
    """A restored store gives up what it knew as running, which a file knows as ended."""
    rows = next(pages(opened, 1000))
    path = attempt_files.write_day(tmp_path, DAY, [rows], form).path
    before = read(path)
    past = [
        msgspec.structs.replace(row, **LOST | {"reason": reason}, ended="1970-01-01T00:04:00.000Z")
        for row in rows[:4]
    ]
    assert {row.succeeded for row in rows[:4]} == {True, False}
    written = attempt_files.write_day(tmp_path, DAY, [past], form)
    assert (written.rows, written.kept) == (25, 25)
    assert read(path) == before


@FORMS
def test_what_was_lost_takes_the_end_that_is_reported_later(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form
) -> None:
    rows = next(pages(opened, 1000))
    right = attempt_files.write_day(tmp_path / "right", DAY, [rows], form).path
    lost = [msgspec.structs.replace(row, **LOST, signal=9) for row in rows]
    attempt_files.write_day(tmp_path, DAY, [lost], form)
    written = attempt_files.write_day(tmp_path, DAY, [rows], form)
    assert written.kept == 0
    assert read(written.path) == read(right)


@FORMS
def test_two_executions_under_one_id_are_two_rows(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form
) -> None:
    first = next(pages(opened, 1))[0]
    second = msgspec.structs.replace(
        first,
        **LOST,
        assigned="1970-01-01T00:10:00.000Z",
        started="1970-01-01T00:10:01.000Z",
        ended="1970-01-01T00:11:00.000Z",
    )
    attempt_files.write_day(tmp_path, DAY, [[first]], form)
    written = attempt_files.write_day(tmp_path, DAY, [[second]], form)
    assert (written.rows, written.kept) == (2, 1)
    before = written.path.read_bytes()
    written = attempt_files.write_day(tmp_path, DAY, [[second]], form)
    assert (written.rows, written.kept) == (2, 1)
    if form == "csv":
        assert written.path.read_bytes() == before
        with written.path.open(newline="", encoding="utf-8") as file:
            assert [row["reason"] for row in csv.DictReader(file)] == ["Exited", "Lost"]


def test_columns_that_one_side_does_not_know_are_kept(opened: store.Store, tmp_path: Path) -> None:
    """A file of a newer version has more columns, one of an older version fewer."""
    rows = next(pages(opened, 1000))
    arrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    forms: list[attempt_forms.Form] = ["csv", "parquet"]
    for form in forms:
        path = attempt_files.write_day(tmp_path, DAY, [rows[:2]], form).path
        if form == "csv":
            with path.open(newline="", encoding="utf-8") as file:
                header, *lines = csv.reader(file)
            at = header.index("task_group")
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(
                    [*line[:at], *line[at + 1 :], more]
                    for line, more in [(header, "watts"), *((line, "7") for line in lines)]
                )
        else:
            table = parquet.read_table(str(path)).drop_columns(["task_group"])
            parquet.write_table(table.append_column("watts", arrow.array([7, 7])), str(path))
        written = attempt_files.write_day(tmp_path, DAY, [rows[1:3]], form)
        assert (written.rows, written.kept) == (3, 1)
        found = list(read(path).values())
        assert tuple(found[0]) == (*attempt_forms.COLUMNS, "watts")
        seven, nothing = ("7", "") if form == "csv" else (7, None)
        assert [row["watts"] for row in found] == [seven, seven, nothing]
        assert [row["task_group"] or None for row in found] == [
            None,
            rows[1].task_group,
            rows[2].task_group,
        ]


@pytest.mark.parametrize(
    ("form", "content", "told"),
    [
        ("csv", b"name,price\nx,1\n", "no columns named attempt and ended"),
        ("csv", b"attempt,ended,ended\n", "two columns of one name"),
        ("csv", b"attempt,ended\na,1\nb", "a row has 1 cells, and 2 columns"),
        ("csv", b"attempt,ended\n,1\n", "a row names no attempt"),
        ("csv", b"attempt,ended\na,1\na,2\n", "attempt a is there twice"),
        ("csv", b"attempt,ended\na,\xff\n", "can't be read"),
        ("parquet", b"PAR1 and no more", "it can't be read"),
    ],
)
def test_a_file_that_is_no_such_table_stays(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form, content: bytes, told: str
) -> None:
    path = tmp_path / f"jobs-{DAY}.{form}"
    path.write_bytes(content)
    with pytest.raises(attempt_forms.TableFileError, match=f"stays: .*{told}.* To fix: move"):
        attempt_files.write_day(tmp_path, DAY, pages(opened, 10), form)
    assert path.read_bytes() == content
    assert list(tmp_path.glob(".*.part")) == []


@pytest.mark.parametrize(
    ("column", "values"),
    [("attempt", [["a"], ["b"]]), ("ended", [1.5, 2.5]), ("cpus", [{"a": 1}, {"a": 2}])],
)
def test_a_table_with_a_column_of_another_type_stays(
    opened: store.Store, tmp_path: Path, column: str, values: list[object]
) -> None:
    """Other programs write times as numbers, and lists where a text was."""
    arrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    path = attempt_files.write_day(tmp_path, DAY, [next(pages(opened, 2))], "parquet").path
    table = parquet.read_table(str(path))
    place = table.column_names.index(column)
    parquet.write_table(table.set_column(place, column, arrow.array(values)), str(path))
    before = path.read_bytes()
    with pytest.raises(attempt_forms.TableFileError, match=r"stays: it can't be read \(.* To fix"):
        attempt_files.write_day(tmp_path, DAY, pages(opened, 10), "parquet")
    assert path.read_bytes() == before
    assert list(tmp_path.glob(".*.part")) == []


@FORMS
def test_an_empty_file_is_filled(
    opened: store.Store, tmp_path: Path, form: attempt_forms.Form
) -> None:
    (tmp_path / f"jobs-{DAY}.{form}").touch()
    assert attempt_files.write_day(tmp_path, DAY, pages(opened, 10), form).rows == 25


def test_what_breaks_off_leaves_nothing_and_the_file_before(
    opened: store.Store, tmp_path: Path
) -> None:
    def broken() -> Iterator[list[attempt_rows.AttemptRow]]:
        yield next(pages(opened, 10))
        raise ConnectionError("the controller has gone")

    folder = tmp_path / "out"
    with pytest.raises(attempt_forms.TableFileError, match="the controller has gone"):
        attempt_files.write_day(folder, DAY, broken(), "csv")
    assert list(folder.iterdir()) == []


#: Writes a day while somebody else puts links in the place of unfinished files between any two
#: steps: before each change of a mode and each opening of a file.
_EXCHANGED = """
import os, pathlib, sys
from reconciler.operations.reports import attempt_files
folder, victim, form = sys.argv[1:]
attempt_files.require(form)
is_at_it = []

def exchange(event, _):
    if event not in ("os.chmod", "open", "os.rename", "os.remove") or is_at_it:
        return
    is_at_it.append(True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(".part") and not os.path.islink(path):
            os.unlink(path)
            os.symlink(victim, path)
            print("exchanged")
    is_at_it.clear()

sys.addaudithook(exchange)
try:
    attempt_files.write_day(pathlib.Path(folder), "1970-01-01", [[]], form)
except attempt_files.TableFileError as error:
    print(error)
"""


@FORMS
def test_a_link_in_place_of_an_unfinished_file_leads_nowhere(
    tmp_path: Path, form: attempt_forms.Form
) -> None:
    folder, victim = tmp_path / "out", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("root only")
    victim.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", _EXCHANGED, folder, victim, form],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("exchanged\n")
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600
    assert victim.read_text() == "root only"
    assert " was exchanged while it was written. To fix: name a folder" in done.stdout
    assert list(folder.iterdir()) == []


_WRITTEN = """
import pathlib, sys
from reconciler.operations.reports import attempt_files
try:
    attempt_files.write_day(pathlib.Path(sys.argv[1]), "1970-01-01", [[]], sys.argv[2])
except attempt_files.TableFileError as error:
    print(error)
"""


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("planted", ["link", "pipe", "folder"])
def test_what_is_no_file_is_neither_waited_for_nor_replaced(
    tmp_path: Path, form: attempt_forms.Form, planted: str
) -> None:
    folder, victim = tmp_path / "out", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("root only")
    path = folder / f"jobs-{DAY}.{form}"
    if planted == "link":
        path.symlink_to(victim)
    elif planted == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = path.lstat()
    done = subprocess.run(
        [sys.executable, "-c", _WRITTEN, folder, form],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith(f"{path} stays: it is a link or something else, expected a file.")
    assert os.path.samestat(path.lstat(), before)
    assert victim.read_text() == "root only"
    assert list(folder.iterdir()) == [path]


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        path = attempt_files.write_day(tmp_path, DAY, [[]], "csv").path
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_parquet_has_types_and_text_as_it_is(opened: store.Store, tmp_path: Path) -> None:
    written = attempt_files.write_day(tmp_path, DAY, pages(opened, 10), "parquet")
    table = importlib.import_module("pyarrow.parquet").read_table(str(written.path))
    assert table.num_rows == written.rows == 25
    assert tuple(table.column_names) == attempt_forms.COLUMNS
    types = {field.name: (str(field.type), field.nullable) for field in table.schema}
    assert types["ended"] == ("timestamp[ms, tz=UTC]", False)
    assert types["started"] == ("timestamp[ms, tz=UTC]", True)
    assert (types["run"], types["gpus"]) == (("int64", False), ("double", False))
    assert types["succeeded"] == ("bool", False)
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["job"], first["ended"].timestamp()) == ("=cmd()", 200.0)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    attempt_files.require("parquet")
    monkeypatch.setattr(importlib, "import_module", missing)
    attempt_files.require("csv")
    with pytest.raises(attempt_forms.TableFileError, match=r"muster-cluster\[parquet\]"):
        attempt_files.require("parquet")


def test_the_guide_lists_every_column_with_its_type() -> None:
    guide = Path("docs/guides/queue-administrator/reports.md").read_text(encoding="utf-8")
    arrow = importlib.import_module("pyarrow")
    for field in attempt_forms.parquet_schema(arrow):
        kind = {"double": "number", "int64": "integer", "string": "text", "bool": "boolean"}.get(
            str(field.type), "time"
        )
        optional = ", may be empty" if field.nullable else ""
        assert f"| `{field.name}` | {kind}{optional} |" in guide, field.name
