"""The list of situations of GPUs is that of the tests."""

from tests.nvml import page, situations


def test_the_page_is_what_is_tested() -> None:
    told = page.PATH.read_text(encoding="utf-8")
    assert told == page.text(), "run `python -m tests.nvml.page`"
    assert told.count("\n| ") == len(situations.ROWS) + 2 * len(page.GROUPS)
    assert sum(len(rows) for _, rows in page.GROUPS) == len(situations.ROWS) >= 50
