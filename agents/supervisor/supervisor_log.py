"""The supervisor's log: its standard error, a file that never grows above a limit. Stdlib only."""

import os
import time

LOG_BYTES_MAX = 2**20


def complain(text: str) -> None:
    """Write a line to the log."""
    try:
        if os.fstat(2).st_size > LOG_BYTES_MAX:
            os.ftruncate(2, 0)
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} supervisor: {text}\n".encode())
    except OSError:
        pass
