"""A cluster for programs of frameworks, in a folder whose name is as long as people's get."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks import install
from tests.integration import beds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where the frameworks are not installed."""
    here = Path(__file__).parent
    if install.is_there():
        return
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no frameworks: run `make frameworks`"))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    """Two virtual nodes below a folder of some 200 characters, as on a laptop without root."""
    folder = tmp_path_factory.mktemp("frameworks") / ("d" * 150)
    folder.mkdir()
    with beds.Bed(
        folder, nodes=2, cpus=4, lease="30s", silence="20s", isolation="process-group"
    ) as made:
        yield made
