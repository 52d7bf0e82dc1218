"""The controller of these tests: what comes late hides nothing that came before it."""

import msgspec

from reconciler.model.protocol.agent_messages import SyncRequest
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents.controller import Controller

RUNNING = AttemptReport("a", AttemptState.RUNNING)
ENDED = AttemptReport("a", AttemptState.ENDED, end_reason=EndReason.EXITED, exit_code=0)


def say(controller: Controller, life: str, sequence: int, *reports: AttemptReport) -> None:
    """One request, answered at once."""
    request = SyncRequest(
        node="n1",
        boot_id="b",
        incarnation=life,
        have=(0, 0),
        complete=True,
        sequence=sequence,
        attempts=reports,
    )
    status, _ = controller.answer("/v1/nodes/n1/sync", msgspec.msgpack.encode(request), {})
    assert status == 200


def test_a_request_that_was_overtaken_hides_no_end(controller: Controller) -> None:
    """An agent has two connections, and each of its requests says what was so when it was made."""
    say(controller, "first", 1, RUNNING)
    say(controller, "first", 3, ENDED)
    other = AttemptReport("b", AttemptState.RUNNING)
    say(controller, "first", 2, RUNNING, other)
    assert controller.seen == {"a": ENDED, "b": other}
    assert controller.listed == ("a",)
    assert controller.crossed == ["a"]


def test_a_request_of_an_agent_that_has_died_hides_no_end(controller: Controller) -> None:
    say(controller, "first", 7, RUNNING)
    say(controller, "second", 1, ENDED)
    say(controller, "first", 8, RUNNING)
    assert controller.seen == {"a": ENDED}


def test_what_is_said_later_counts(controller: Controller) -> None:
    """An attempt that lives after its end is a defect that a test has to see."""
    say(controller, "first", 1, ENDED)
    say(controller, "first", 2, RUNNING)
    assert controller.seen == {"a": RUNNING}
    assert controller.crossed == []
