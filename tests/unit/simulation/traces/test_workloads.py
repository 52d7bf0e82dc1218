"""Traces are read row by row; what is malformed is named and costs nothing else."""

import gzip
from pathlib import Path

import pytest

from reconciler.operations.simulate import trace_simulation
from reconciler.simulation.traces import workloads
from reconciler.simulation.traces.workloads import TraceJob, Workload

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:02:00,66.0,1,66.0,vc2
2017-10-09 07:00:00,2951.5,8,2951.0,vc1

yesterday,10,1,10,vc1
2017-10-09 07:03:00,-5,1,10,vc1
2017-10-09 07:03:00,nan,1,10,vc1
2017-10-09 07:03:00,5,1.5,10,vc1
2017-10-09 07:03:00,5,0,10,vc1
2017-10-09 07:03:00,5,1,10,
2017-10-09 07:03:00,5,1
2017-10-09 07:04:00,7,16,112,vc1
"""


def test_philly_rows_in_order_of_time() -> None:
    found = workloads.read_philly(PHILLY.splitlines(keepends=True))
    assert found.rows == (
        TraceJob("job-000003", 0.0, 2951.5, 8, "vc1"),
        TraceJob("job-000002", 120.0, 66.0, 1, "vc2"),
        TraceJob("job-000012", 240.0, 7.0, 16, "vc1"),
    )
    assert found.unit == "gpu"
    assert found.malformed_count == 8
    assert [(row.line, row.why.split()[0]) for row in found.malformed] == [
        (4, "it"), (5, "timestamp"), (6, "duration"), (7, "duration"), (8, "num_gpus"),
        (9, "num_gpus"), (10, "it"), (11, "it"),
    ]  # fmt: skip


def test_another_heading_is_refused() -> None:
    with pytest.raises(workloads.WorkloadError, match=r"found the columns a,b; expected timestamp"):
        workloads.read_philly(["a,b\n"])


SWF = """\
; Version: 2.2
; a comment
1 100 5 3600 4 -1 -1 8 7200 -1 1 17 3 -1 2 -1 -1 -1
2 90 0 60 2 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1
3 120 0 -1 2 -1 -1 2 60 -1 5 1 1 -1 1 -1 -1 -1
4 120 0 10 2
5 x 0 10 2 -1 -1 2 60 -1 5 1 1 -1 1 -1 -1 -1
"""


def test_swf_rows() -> None:
    found = workloads.read_swf(SWF.splitlines(keepends=True))
    assert found.rows == (
        TraceJob("job-000004", 0.0, 60.0, 2, "default"),
        TraceJob("job-000003", 10.0, 3600.0, 8, "queue-2", "user-17", 7200),
    )
    assert found.unit == "cpu"
    assert [(row.line, row.why) for row in found.malformed] == [
        (5, "run time is -1.0; expected a number above 0, at most 3.1536e+09"),
        (6, "it has 5 fields; expected 18"),
        (7, 'submit time "x" is no number'),
    ]


@pytest.mark.parametrize(("column", "text", "why"), [
    (12, "x", 'group "x" is no number'), (7, "inf", 'requested processors "inf" is not finite'),
])  # fmt: skip
def test_a_field_of_swf_is_named(column: int, text: str, why: str) -> None:
    cells = SWF.splitlines()[2].split()
    cells[column] = text
    found = workloads.read_swf([" ".join(cells)])
    assert [row.why for row in found.malformed] == [why]


def test_blank_lines_at_the_end_are_no_rows() -> None:
    for read, text in ((workloads.read_philly, PHILLY), (workloads.read_swf, SWF)):
        lines = text.splitlines(keepends=True)
        assert read([*lines, "\n", "  \n"]) == read(lines)
        last = len(lines)
        named = {row.line: row.why for row in read([*lines, "\n", lines[-1]]).malformed}
        assert named[last + 1] == "it is blank"


def test_only_so_many_malformed_rows_are_named_but_all_are_counted() -> None:
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster\n", *["x\n"] * 500]
    found = workloads.read_philly(lines)
    assert (found.malformed_count, len(found.malformed)) == (500, workloads.NAMED_MAX)


@pytest.mark.parametrize("packed", [False, True])
def test_files_plain_or_packed(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(gzip.compress(PHILLY.encode()) if packed else PHILLY.encode())
    assert len(trace_simulation.read_file(path, workloads.read_philly).rows) == 3


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x1f\x8b\x08\x00broken", r"t\.csv can't be read"),
        (b"\xff\xfe\x00", r"t\.csv: found the columns \?\?"),
        (b"x," * 40_000, r"t\.csv: line 1 has more than 65,536 characters: it is no trace"),
        (b"x," * 400, r"t\.csv: found the columns (x,){100}…; expected timestamp"),
    ],
)
def test_a_file_that_cant_be_read_is_named(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(trace_simulation.SimulateError, match=told):
        trace_simulation.read_file(path, workloads.read_philly)


def test_a_row_with_an_open_quote_or_strange_bytes_costs_none_behind_it(tmp_path: Path) -> None:
    heading, *rows = PHILLY.encode().splitlines(keepends=True)
    path = tmp_path / "t.csv"
    path.write_bytes(heading + b"".join(rows))
    plain = trace_simulation.read_file(path, workloads.read_philly)
    open_quote = b'2017-10-09 07:00:00,600,8,4800,"vision\n'
    latin = "2017-10-09 07:00:00,600,8,4800,Zürich\n".encode("latin-1")
    path.write_bytes(b"\xef\xbb\xbf" + heading + open_quote + latin + b"".join(rows))
    found = trace_simulation.read_file(path, workloads.read_philly)
    assert [(row.submit_s, row.size) for row in found.rows] == [
        (row.submit_s, row.size) for row in plain.rows
    ]
    first, second = found.malformed[:2]
    assert (first.line, "its quotes are not closed" in first.why) == (2, True)
    assert (second.line, second.why) == (3, "it is not UTF-8")
    path.write_bytes(heading + open_quote.replace(b'"vision', b'"vision, 2"'))
    (quoted,) = trace_simulation.read_file(path, workloads.read_philly).rows
    assert quoted.queue == "vision, 2"
    columns = ",".join(f'"{name}"' for name in workloads.PHILLY_COLUMNS)
    path.write_bytes(columns.encode() + b"\n" + b"".join(rows))
    assert trace_simulation.read_file(path, workloads.read_philly).rows == plain.rows


def test_a_comment_in_another_encoding_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    path.write_bytes("; Computer: Köln\n".encode("latin-1") + SWF.encode())
    assert len(trace_simulation.read_file(path, workloads.read_swf).rows) == 2


def test_time_limits_are_drawn_once_and_never_too_short() -> None:
    rows = tuple(TraceJob(f"j{n}", float(n), 600.0, 1, "q") for n in range(2000))
    given = TraceJob("given", 3000.0, 600.0, 1, "q", limit_s=60)
    found = workloads.with_limits(Workload((*rows, given)), seed=7)
    assert found == workloads.with_limits(Workload((*rows, given)), seed=7)
    assert found != workloads.with_limits(Workload((*rows, given)), seed=8)
    limits = sorted(row.limit_s or 0 for row in found.rows[:-1])
    assert limits[0] > 600
    assert all(limit % 60 == 0 for limit in limits)
    assert 1140 <= limits[1000] <= 1320, "the median guess is twice the run time"
    assert found.rows[-1].limit_s == 60


def test_guarantees_by_the_largest_remainder() -> None:
    rows = tuple(
        TraceJob(f"{queue}", 0.0, float(work), 1, queue)
        for queue, work in (("a", 50), ("b", 30), ("c", 20.5), ("d", 0.1))
    )
    found = workloads.guarantees(Workload(rows), 10)
    assert found == {"a": 5, "b": 3, "c": 2, "d": 0}
    assert sum(workloads.guarantees(Workload(rows), 7).values()) == 7
    assert workloads.guarantees(Workload(()), 7) == {}


def test_made_up_jobs_ask_for_the_load_that_was_asked_for() -> None:
    found = workloads.generate(seed=1, jobs=4000, units=64, load=0.8, queues=3)
    assert found == workloads.generate(seed=1, jobs=4000, units=64, load=0.8, queues=3)
    assert found.queues() == ["team-a", "team-b", "team-c"]
    work = sum(row.size * row.runs_s for row in found.rows)
    assert work / (64 * found.rows[-1].submit_s) == pytest.approx(0.8, rel=0.1)
    assert max(row.size for row in found.rows) <= 64


def test_faster_arrivals_and_fewer_jobs() -> None:
    found = workloads.generate(seed=1, jobs=10, units=8, load=1.0)
    fast = workloads.speed_up(workloads.first(found, 4), 2.0)
    assert [row.submit_s for row in fast.rows] == [row.submit_s / 2 for row in found.rows[:4]]
