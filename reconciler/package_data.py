"""Files that come with the package: schemas, the example of a desired state, the starter.

In a wheel they are inside ``reconciler/data``; in a checkout they are the top-level folders.
"""

import importlib.resources
from pathlib import Path


def _package() -> Path:
    return Path(str(importlib.resources.files("reconciler")))


def checkout() -> Path:
    """Return the folder that holds the package: the repository, if it runs from a checkout."""
    return _package().parent


def _find(name: str) -> Path:
    packed = _package() / "data" / name
    return packed if packed.is_dir() else checkout() / name


def cluster_state() -> Path:
    """Return the folder with the example desired state that the demo runs."""
    return _find("cluster-state")


def starter() -> Path:
    """Return the folder that ``muster init`` copies into a new repository."""
    return _package() / "data" / "starter"


def schemas() -> Path:
    """Return the folder with the JSON Schema of each kind."""
    return _find("schemas")
