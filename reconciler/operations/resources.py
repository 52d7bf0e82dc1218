"""Files that come along with the package: schemas and the example of a desired state.

In a wheel they are below ``reconciler/data``; in a checkout they are the top-level folders.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def _find(name: str) -> Path:
    packed = _PACKAGE / "data" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name


def cluster_state() -> Path:
    """The example desired state that the demo runs."""
    return _find("cluster-state")


def starter() -> Path:
    """What ``muster init`` begins a repository with."""
    return _PACKAGE / "data" / "starter"


def schemas() -> Path:
    """The JSON Schemas of all kinds."""
    return _find("schemas")
