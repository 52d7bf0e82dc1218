"""Earlier figures of benchmarks can be read, and the page names each file of them."""

import json
from pathlib import Path

import pytest

from reconciler import package_data

RESULTS = sorted((package_data.checkout() / "bench" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_each_record_has_date_commit_machine_and_figures(path: Path) -> None:
    records = json.loads(path.read_text(encoding="utf-8"))
    assert records
    for record in records:
        assert set(record) == {"date", "commit", "machine", "figures", "note"}
        assert record["figures"] or record["note"]


def test_the_page_names_every_file() -> None:
    text = (package_data.checkout() / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert RESULTS
    for path in RESULTS:
        assert f"`{path.name}`" in text
