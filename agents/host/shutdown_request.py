"""Handles SIGTERM and SIGINT in a thread.

A Python signal handler runs in the main thread between two of its steps. It would deadlock if it
waited for a lock that the main thread holds, for example of an event that is just being set.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable


def call_on_signals(leave: Callable[[], None]) -> None:
    """Call ``leave`` in a thread whenever this process is asked to end. Call it once, in the main
    thread.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write, False)
    # the kernel itself writes to it, whatever Python is doing
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while True:
            with contextlib.suppress(InterruptedError):
                os.read(read, 64)
                leave()

    threading.Thread(target=listen, name="asked to end", daemon=True).start()
