"""Verification of the audit log, run by the server as a separate process.

It takes seconds for a large log, and any caller with a token may request it: agents are answered
quickly meanwhile. It prints the result as JSON.
"""

import argparse
import os
import sys
from pathlib import Path

import msgspec

from reconciler.operations.audit import audit_log

#: Exit status if the log can't be read; stdout has the reason.
UNREADABLE = 4


def main(arguments: list[str]) -> int:
    """Write the verdict on a log to stdout, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m reconciler.operations.audit.verify_worker")
    parser.add_argument("--log", required=True, metavar="FILE", type=Path)
    parser.add_argument("--first", required=True, metavar="NUMBER", type=int)
    options = parser.parse_args(arguments)
    os.nice(5)
    try:
        found = audit_log.Log(options.log).verify(options.first)
    except OSError as error:
        sys.stdout.write(f"the log can't be read: {error}")
        return UNREADABLE
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
