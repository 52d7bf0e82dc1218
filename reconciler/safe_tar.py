"""Chooses a ``tarfile`` that unpacks nothing outside a folder: with the filter ``data``.

Python has it since 3.11.4. For older ones, such as Debian 12's 3.11.2, a backport is installed with
the extras. Without it all but unpacking works.
"""

import contextlib
import sys
import tarfile

if not hasattr(tarfile, "data_filter"):
    with contextlib.suppress(ModuleNotFoundError):
        from backports import tarfile  # type: ignore[no-redef,import-not-found]

__all__ = ["tarfile", "why_unsafe"]


def why_unsafe() -> str:
    """Return why nothing can be unpacked safely here; empty if it can."""
    if hasattr(tarfile, "data_filter"):
        return ""
    return (
        f"Python {sys.version.split()[0]} has no safe way to unpack. To fix: install "
        "backports.tarfile beside Muster, or use Python 3.11.4 or newer"
    )
