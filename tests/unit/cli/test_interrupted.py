"""What a run that is interrupted before there is a job makes of errors that come of it."""

import signal

import pytest

from reconciler.cli import running


@pytest.mark.parametrize("came", [True, False])
def test_what_fails_after_a_signal_fails_by_it(*, came: bool) -> None:
    """Ctrl-C ends git as well, and the module that asked it as it was loaded is loaded by half."""
    leaving = running._Leaving(lambda: 0)
    if came:
        leaving.asked(signal.SIGINT, None)
    expected = running._Interrupted if came else ImportError
    with pytest.raises(expected), leaving.quietly():
        raise ImportError("no git")
    assert leaving.is_before is came
