"""What options of benchmarks have in common: figures of nothing are told before it is measured."""

import argparse
import os
from pathlib import Path


def count(text: str) -> int:
    """A whole number, at least 1: how often something is measured, or how many there are.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return found


def new_file(text: str) -> Path:
    """Where a file can be written, which is looked at before anything is measured for it.

    Raises:
        ArgumentTypeError: it can't.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent} to write it in")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} can't be written")
    return path
