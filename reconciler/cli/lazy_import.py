"""Modules that are imported when they are first used, so that light commands start at once.

Reading YAML, git and schemas takes longer to import than most commands take to run. A module that
is used under one of the commands only is named here instead of being imported at the top.
"""

import importlib.util
import sys
from types import ModuleType


def module(name: str) -> ModuleType:
    """The module of this full name; its code runs when something of it is first asked for."""
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
    return made
