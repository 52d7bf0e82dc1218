"""Files of what a real cluster ran, written by the command, again and again."""

import csv
import datetime as dt
import io
from pathlib import Path

from tests.integration import beds
from tests.integration.test_overrides import muster


def test_what_ran_is_in_the_file_of_its_day(tmp_path: Path) -> None:
    with beds.Bed(tmp_path) as bed:
        bed.commit(
            {
                "jobs/good.yaml": beds.job("good", "  command: ['true']"),
                "jobs/bad.yaml": beds.job("bad", "  command: ['false']\n  array: {count: 3}"),
            }
        )
        bed.until_state("good", "Succeeded")
        bed.until_state("bad", "Failed")
        today = dt.datetime.now(dt.UTC).date()
        span = ("--from", str(today - dt.timedelta(1)), "--to", str(today))
        for _ in range(2):
            printed, told = muster(bed, "accounting", *span, "--out", "out")
        assert printed.count("jobs-") == 2
        assert "attempts" in told
        found = sorted((bed.folder / "out").glob("jobs-*.csv"))  # midnight may have passed
        rows = [row for path in found for row in csv.DictReader(io.StringIO(path.read_text()))]
        ended = sorted((row["job"], row["succeeded"], row["exit_code"]) for row in rows)
        assert ended == [("bad", "false", "1")] * 3 + [("good", "true", "0")]
        assert {row["queue"] for row in rows} == {"default"}
        _, told = muster(bed, "accounting", "--from", "2026-11-02", "--to", "2026-11-01", code=64)
        assert "--to: found 2026-11-01, expected a day from 2026-11-02 on" in told
        page = bed.get("/v1/accounting/attempts", day=str(today), limit=1)
        assert len(page["items"]) <= 1
