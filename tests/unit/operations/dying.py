"""A process in a controller's place: it writes a warning and then more, and is killed or fails."""

import os
import signal
import sys

sys.stderr.write("2026-11-22T14:24:01 WARNING loop: one node is slow\n")
sys.stderr.write("2026-11-22T14:24:46 INFO loop: all is well\n")
sys.stderr.flush()
if "--killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit("no room is left")
