"""Fixtures of the server's integration tests."""

import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.server import parts


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[parts.Served]:
    """A server whose loop is ready."""
    made = parts.Served(tmp_path)
    try:
        yield made.ready()
    finally:
        made.close()
