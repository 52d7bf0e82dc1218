"""Every document here agrees exactly; those of other schedulers agree, or it is said why not.

Documents in ``kai`` have their facts from that scheduler's test tables: amounts, what runs where,
and what must have become of it. Where its tables let one action happen alone, only what holds after
all of them is expected.
"""

import os
from pathlib import Path

import msgspec
import pytest

from reconciler.operations.simulate import scenarios
from reconciler.simulation.scenarios import known_differences

HERE = Path(__file__).parent
SHARED = HERE.parents[1].parent / "shared" / "scenarios"
TRANSCRIBED = sorted((HERE / "kai").glob("*.yaml"))
DOCUMENTS = sorted(set(HERE.rglob("*.yaml")) - set(TRANSCRIBED))


def report_of(*paths: Path, meant: dict[str, str] | None = None) -> scenarios.ScenarioReport:
    return scenarios.run(scenarios.find(paths), meant)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_own_documents(path: Path) -> None:
    report = report_of(path)
    assert report.errors == []
    folder = report.folders[path.parent.name]
    told = msgspec.json.encode(folder).decode()
    assert (folder.total, folder.exact, folder.states) == (1, 1, 1), told


@pytest.mark.parametrize("path", TRANSCRIBED, ids=lambda path: path.stem)
def test_transcribed_documents(path: Path) -> None:
    """States agree, on whatever node, unless it is listed why they differ."""
    report = report_of(path)
    assert report.errors == []
    folder = report.folders["kai"]
    told = msgspec.json.encode(folder).decode()
    meant = f"kai/{path.name}" in known_differences.MEANT
    assert (folder.total, folder.states) == (1, 0 if meant else 1), told


@pytest.fixture(scope="module")
def shared() -> scenarios.ScenarioReport:
    if not SHARED.is_dir():
        assert not os.environ.get("CI"), f"in CI {SHARED} has to be there"
        pytest.skip(f"{SHARED} is not there")
    return report_of(SHARED)


def test_documents_of_other_schedulers_are_all_understood(shared: scenarios.ScenarioReport) -> None:
    assert shared.errors == []
    assert shared.folders["fair-share"].total >= 35
    for folder in shared.folders.values():
        assert folder.total == folder.states + len(folder.diverging)


def test_documents_of_other_schedulers_agree_or_it_is_said_why(
    shared: scenarios.ScenarioReport,
) -> None:
    """A document that this build can express either agrees or is listed with a reason."""
    silent = [
        (name, one.file, one.expected, one.found)
        for name, folder in shared.folders.items()
        for one in folder.diverging
        if one.meant is None and not _not_built(one)
    ]
    assert silent == []


def test_what_is_listed_as_meant_still_differs(shared: scenarios.ScenarioReport) -> None:
    differs = {
        f"{n}/{one.file}" for n, folder in shared.folders.items() for one in folder.diverging
    }
    transcribed = {f"kai/{path.name}" for path in TRANSCRIBED}  # looked at one by one
    assert set(known_differences.MEANT) <= differs | transcribed
    assert all(len(reason) > 20 for reason in known_differences.MEANT.values())


def _not_built(one: scenarios.Diverging) -> bool:
    return str(one.found.get("*", {}).get("state", "")).startswith("not built yet: ")
