"""What a run that is interrupted before there is a job makes of errors that come of it."""

import signal

import pytest

from reconciler.cli import interrupts
from reconciler.cli.jobs import followed_job
from reconciler.operations.changes import job_document


@pytest.mark.parametrize("came", [True, False])
def test_what_fails_after_a_signal_fails_by_it(*, came: bool) -> None:
    """Ctrl-C ends git as well, and the module that asked it as it was loaded is loaded by half."""
    leaving = followed_job.JobLeaving(lambda _: True)
    if came:
        leaving.asked(signal.SIGINT, None)
    expected = followed_job.LeaveInterrupt if came else ImportError
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
        options = job_document.JobOptions("j", ("true",))
        status = followed_job.carry_through(options, None, (None, None), lambda *_: 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert status == 130


def test_who_follows_a_job_that_was_there_leaves_it_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leaving = followed_job.JobLeaving(lambda _: pytest.fail("it is somebody else's"))
    leaving.about_to_submit()
    leaving.submitted(is_mine=False)
    assert leaving.give_up("j", "nobody read its output", 141) == 141
    with pytest.raises(followed_job.LeaveInterrupt):
        leaving.asked(signal.SIGINT, None)
    assert leaving.at_once("j") == 130
    told = capsys.readouterr().err
    assert told.count("it existed before this command") == 2
    assert "cancelling" not in told


def test_a_job_is_left_to_itself_by_the_signals_that_leave_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    early, late = (
        followed_job.JobLeaving(lambda _: pytest.fail("it goes on"), {signal.SIGHUP}) for _ in "ab"
    )
    for leaving in (early, late):
        leaving.about_to_submit()
    early.asked(signal.SIGHUP, None)
    with pytest.raises(followed_job.LeaveInterrupt):
        early.submitted()
    late.submitted()
    with pytest.raises(followed_job.LeaveInterrupt):
        late.asked(signal.SIGHUP, None)
    assert [early.at_once("j"), late.at_once("j")] == [129, 129]
    told = capsys.readouterr().err
    assert told.count("j continues") == 2
    assert "existed before" not in told


def test_other_signals_cancel_it() -> None:
    cancelled: list[str] = []

    def cancel(why: str) -> bool:
        cancelled.append(why)
        return True

    leaving = followed_job.JobLeaving(cancel, {signal.SIGHUP})
    leaving.about_to_submit()
    leaving.submitted()
    leaving.asked(signal.SIGTERM, None)
    assert leaving.status(0) == 143
    assert cancelled == ["interrupted"]
