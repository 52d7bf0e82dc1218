"""Command lines of child interpreters that never run files of the current folder."""

import os
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules in a child interpreter.

    Plain ``python -m`` puts the current folder first on the path of imports: a ``psutil.py`` beside
    somebody's desired state would run. ``-P`` leaves that folder out. Children of root also
    ignore ``PYTHONPATH``, its kin and root's own site folder (``-I``).

    Args:
        module: dotted name, such as ``reconciler.server``.
        arguments: of the module.
    """
    return [sys.executable, "-I" if os.geteuid() == 0 else "-P", "-m", module, *arguments]
