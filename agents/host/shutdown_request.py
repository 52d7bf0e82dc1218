"""Being asked to end: by a thread, since a signal comes while the main one holds any lock.

What a handler runs is run by the main thread between two of its steps. Whatever it waits for that
this thread holds, as an event that is just being set, it would wait for until it is killed.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable


def heed(leave: Callable[[], None]) -> None:
    """Have ``leave`` called by another thread whenever this process is asked to end. Once for a
    process, by its main thread."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write, False)
    # written to by the kernel's own call, before and beside whatever Python is at
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        while True:
            with contextlib.suppress(InterruptedError):
                os.read(read, 64)
                leave()

    threading.Thread(target=listen, name="asked to end", daemon=True).start()
