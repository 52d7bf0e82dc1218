"""Chooses a ``tarfile`` that unpacks nothing outside a folder: with the filter ``data``.

Python has it since 3.11.4. For older ones, such as Debian 12's 3.11.2, a backport is installed.
"""

import tarfile

if not hasattr(tarfile, "data_filter"):
    from backports import tarfile  # type: ignore[no-redef,import-not-found]

__all__ = ["tarfile"]
