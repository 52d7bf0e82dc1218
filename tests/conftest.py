"""What holds for all tests: none fails because the machine is busy, or for where it was started."""

import signal

import hypothesis

hypothesis.settings.register_profile("muster", deadline=None)
hypothesis.settings.load_profile("muster")

# What a script starts in the background ignores Ctrl-C, and so does all that it starts: tests
# of what Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
