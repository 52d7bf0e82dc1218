"""Lazy imports, so that quick commands start at once.

Importing the readers of YAML, git and schemas takes longer than most commands run. A module that
only some commands need is loaded through here instead of at the top of a file.
"""

import importlib.util
import sys
from types import ModuleType


def module(name: str) -> ModuleType:
    """Return the module of this full name. Its code runs on the first attribute access."""
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, loaded)
    return loaded
