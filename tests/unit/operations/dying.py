"""A process in a controller's place: it writes a warning, and is killed, fails or leaves."""

import os
import signal
import sys

sys.stderr.write("2026-11-22T14:24:01 WARNING loop: one node is slow\n")
sys.stderr.write("2026-11-22T14:24:46 INFO loop: all is well\n")
sys.stderr.flush()
if "--killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "--stopped" in sys.argv:
    sys.exit(0)
if "--silent" in sys.argv:
    sys.exit(3)
sys.exit("no room is left")
