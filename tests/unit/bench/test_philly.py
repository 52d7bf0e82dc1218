"""The benchmark's rows: every figure beside every peer, goals where there are any."""

from pathlib import Path

import pytest

from bench import philly

HEADING = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def test_a_small_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"2017-10-09 07:{number:02d}:00,{100 + 37 * number},{size},1,vc{number % 3}"
        for number, size in enumerate([1, 2, 8, 16] * 10)
    ]
    path = tmp_path / "t.csv"
    path.write_text(HEADING + "\n".join([*rows, "", "x"]) + "\n")
    found = philly.run(["--jobs", str(path)])
    assert "line 43 is left out" in capsys.readouterr().err
    measured = [row for row in found if "not_measured" not in row]
    values = {(row["name"], row["peer"]): row for row in measured}
    assert values["jobs", None]["value"] == 40
    assert values["malformed_rows", None]["value"] == 2
    for peer in ("fifo", "easy", "conservative", "shortest"):
        row = values["muster_slowdown_mean", peer]
        assert row["ratio"] == row["value"] / row["peer_value"]
        assert row["met"] is (row["value"] < row["peer_value"])
    assert values["muster_shortfall", None]["met"] is True
    assert [row["not_measured"].split(":")[0] for row in found if "not_measured" in row] == [
        "error of estimated starts",
        "whether reasons are true",
    ]


def test_reasons_of_those_who_wait_are_tried_out(tmp_path: Path) -> None:
    rows = [
        f"2017-10-09 07:{number // 10:02d}:00,{100 + 37 * number},{size},1,vc{number % 3}"
        for number, size in enumerate([16, 32, 64] * 20)
    ]
    path = tmp_path / "t.csv"
    path.write_text(HEADING + "\n".join(rows) + "\n")
    found = philly.run(["--jobs", str(path), "--reasons-every", "2"])
    values = {row["name"]: row for row in found if "not_measured" not in row}
    assert values["muster_reasons_checked"]["value"] > 0
    assert values["muster_reasons_false"]["met"] is True
    assert values["muster_reasons_not_decided"]["value"] == 0


@pytest.mark.parametrize("text", ["a,b\n1,2\n", HEADING])
def test_what_could_not_be_measured_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(RuntimeError, match=r"t\.csv"):
        philly.run(["--jobs", str(path)])
