"""What a run that is interrupted before there is a job makes of errors that come of it."""

import signal

import pytest

from reconciler.cli import interrupts
from reconciler.cli.jobs import run
from reconciler.operations.changes import job_document


@pytest.mark.parametrize("came", [True, False])
def test_what_fails_after_a_signal_fails_by_it(*, came: bool) -> None:
    """Ctrl-C ends git as well, and the module that asked it as it was loaded is loaded by half."""
    leaving = run._Leaving(lambda _: True)
    if came:
        leaving.asked(signal.SIGINT, None)
    expected = run._Interrupted if came else ImportError
    with pytest.raises(expected), leaving.quietly():
        raise ImportError("no git")
    assert leaving.is_before is came


def test_an_interrupt_that_was_swallowed_before_there_was_a_job_still_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some module's loading may swallow every exception: who asked to leave would wait for ever."""
    monkeypatch.setattr(interrupts, "_came", False)
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    target = "reconciler.operations.changes.local_changes.find_target"
    monkeypatch.setattr(target, lambda **_: pytest.fail("it goes on"))
    with pytest.raises(KeyboardInterrupt):
        interrupts._raise(signal.SIGINT, None)
    try:
        status = run._carry_through(job_document.JobOptions("j", ("true",)), None, (None, None), ())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert status == 130


def test_who_follows_a_job_that_was_there_leaves_it_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leaving = run._Leaving(lambda _: pytest.fail("it is somebody else's"))
    leaving.about_to_submit()
    leaving.submitted(is_mine=False)
    assert leaving.give_up("j", "nobody read its output", 141) == 141
    with pytest.raises(run._Interrupted):
        leaving.asked(signal.SIGINT, None)
    assert leaving.at_once("j") == 130
    told = capsys.readouterr().err
    assert told.count("it existed before this command") == 2
    assert "cancelling" not in told
