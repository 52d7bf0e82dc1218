"""A cluster that ran something is asked what it used: over the API and by command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.integration import beds
from tests.integration.nvml import sites
from tests.nvml import standin

pytestmark = pytest.mark.slow
#: Long enough that the node tells several times how busy its GPUs are.
JOB = "  pools: [h200]\n  timeLimit: 1h\n  resources: {gpu: 2}\n  command: [sleep, '4']"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sites.Site]:
    if standin.COMPILER is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("reported")
    made = sites.Site(folder, standin.build(folder))
    try:
        made.start()
        made.bed.commit({"jobs/train.yaml": beds.job("train", JOB)})
        made.bed.until_state("train", "Succeeded")
        yield made
    finally:
        made.stop()


def muster(site: sites.Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *arguments],
        check=False,
        cwd=site.bed.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_ran_was_used_and_what_was_measured_was_busy(site: sites.Site) -> None:
    report = site.bed.get("/v1/report/usage", by="pool,model")["report"]
    columns = [column["name"] for column in report["columns"]]
    assert columns == ["pool", "model", "attempts", "asked", "allocated", "used", "cpu"]
    (row,) = report["rows"]
    assert row[:3] == ["h200", "NVIDIA H200", 1]
    assert row[3] == pytest.approx(2.0), "two GPUs for an hour were asked for"
    assert 8 / 3600 <= row[4] < 120 / 3600
    efficiency = site.bed.get("/v1/report/efficiency", by="queue")["report"]["rows"][0]
    measured, busy = efficiency[2:4]
    assert 0 < measured <= 1
    assert busy == pytest.approx(0.55), "as the driver says of each GPU"
    (waited,) = site.bed.get("/v1/report/waiting", by="queue")["report"]["rows"]
    assert waited[1] == 1
    (waited,) = site.bed.get("/v1/report/waiting", by="pool,model")["report"]["rows"]
    assert waited[:3] == ["h200", "NVIDIA H200", 1]
    fair = {row[0]: row for row in site.bed.get("/v1/report/fairness")["report"]["rows"]}
    used = site.bed.get("/v1/report/usage")["report"]["rows"]
    assert [(row[0], row[3]) for row in used] == [(row[0], fair[row[0]][-1]) for row in used]


def test_people_get_a_table_and_programs_what_they_ask_for(
    site: sites.Site, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("{currency: EUR, gpuHour: {NVIDIA H200: 3600}}")
    done = muster(site, "report", "usage", "--prices", str(prices))
    assert done.returncode == 0, done.stderr
    heads, line = (text.split() for text in done.stdout.splitlines())
    assert heads == ["QUEUE", "ATTEMPTS", "ASKED", "ALLOCATED", "USED", "CPU", "COST"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert float(line[-1]) >= 8
    assert "cost in EUR" in done.stderr
    printed = muster(site, "report", "efficiency", "-o", "json", "--by", "user")
    assert msgspec.json.decode(printed.stdout)["what"] == "efficiency"
    assert muster(site, "report", "waiting", "-o", "csv").stdout.startswith("queue,jobs,mean_s,")
    for form, begins in (("png", b"\x89PNG"), ("html", b"<!DOCTYPE html>")):
        file = tmp_path / f"report.{form}"
        done = muster(site, "report", "fairness", "-o", form, "-f", str(file))
        assert done.returncode == 0, done.stderr
        assert file.read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["usage", "--by", "queu"], "did you mean queue?"),
        (["usage", "--from", "yesterday"], "expected a span such as 30d"),
        (["waiting", "--prices", "x.yaml"], "--prices"),
    ],
)
def test_wrong_usage_is_told(site: sites.Site, arguments: list[str], says: str) -> None:
    done = muster(site, "report", *arguments)
    assert says in done.stderr
    assert done.returncode != 0
