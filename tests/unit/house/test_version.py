"""The version: one constant in the code, and the same in the packaging."""

import tomllib

import reconciler
from agents.node import inventory
from reconciler import package_data


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((package_data.checkout() / "pyproject.toml").read_text())["project"]
    assert project["version"] == reconciler.__version__ == inventory.VERSION
