"""Controller and server import no module at their start that takes long and has no use there."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "reconciler.server.__main__",
            {"git", "jsonschema", "reconciler.core.reconcile", "sqlalchemy.dialects.postgresql"},
        ),
        (
            "reconciler.controller.process",
            {"git", "httpx", "jsonschema", "litestar", "sqlalchemy.dialects.postgresql"},
        ),
    ],
)
def test_what_takes_long_to_import_is_not_imported(module: str, absent: set[str]) -> None:
    look = f"import sys, {module}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", look], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not absent & loaded
