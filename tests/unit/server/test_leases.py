"""Whatever crosses between agent, server and loop: what was given up is held by no lease.

The session is the real one; around it are an agent that sends and hears, and a loop whose cycles
take as long as they like and which knows only what it had read when its cycle began.
"""

import random

import msgspec
import pytest

from reconciler.core.nodes.health import LEASE_MARGIN_S
from reconciler.model.protocol import loop_messages
from reconciler.server import agent_sync, loop_link
from reconciler.server.nodes import sessions


class Frame(msgspec.Struct):
    """What the server wrote to the loop: a contact at ``at``, and perhaps a question."""

    at: float
    readable_at: float
    question: int = 0
    #: Cycles that begin before it leaves the server's own buffer.
    held_back: int = 0


class World:
    """One node with one task that has a lease; the loop says how long a node is not yet silent."""

    def __init__(self, lease_s: float, silence_s: float = 0.0) -> None:
        self.lease_s, self.silence_s = lease_s, silence_s
        self.poll_s = silence_s / 3
        self.now = 0.0
        self.session = sessions.Session("n1")
        self.session.update(loop_messages.NodeUpdate("n1", 1, 1, lease_s=lease_s))
        self.lease_ends_at = lease_s
        self.frames: list[Frame] = []
        self.known_at = 0.0
        self.deciding: int | None = None
        self.gave_up_at: float | None = None
        self.renewals = 0
        self.sent: list[float] = []

    def elapse(self, seconds: float) -> None:
        """Time passes; a request that is not answered for long is sent anew."""
        self.now += seconds
        waits_s = max(self.poll_s, self.lease_s / 4)
        self.sent = [at for at in self.sent if self.now - at <= waits_s]

    def send(self, held_back: int = 0) -> None:
        """A request comes in, and the server asks the loop where that is due."""
        self.sent.append(self.now)
        sure = self.session.is_sure(self.now, self.poll_s, agent_sync.ASK_PART)
        if not sure and not self.session.asking:
            question = self.session.ask(self.now)
            self.frames.append(Frame(self.now, self.now, question, held_back))

    def answer(self, held_back: int = 0, *, late: bool = False) -> None:
        """The server answers the oldest request; of others a newer one stands in its stead."""
        if not self.sent:
            return
        sent_at = self.sent.pop(0)
        if not self.session.is_sure(self.now, self.poll_s):
            return
        if not self.sent:
            late_s = loop_link.ANSWERED_EVERY_S if late else 0.0
            self.frames.append(Frame(self.now, self.now + late_s, 0, held_back))
            if not held_back:
                self.session.known(self.now)
        if self.session.may_renew_untold(sent_at):
            self.lease_ends_at = max(self.lease_ends_at, sent_at + self.lease_s)
            self.renewals += 1

    def begin(self) -> None:
        """A cycle reads what there is, and decides."""
        if self.deciding is not None:
            return
        self.deciding = 0
        left = []
        for frame in self.frames:
            if frame.held_back or frame.readable_at > self.now:
                frame.held_back = max(0, frame.held_back - 1)
                left.append(frame)
                continue
            self.known_at = max(self.known_at, frame.at)
            self.deciding = max(self.deciding, frame.question)
        self.frames = left
        kept_s = max(self.lease_s + LEASE_MARGIN_S, self.silence_s)
        if self.known_at + kept_s <= self.now:
            self.gave_up_at = self.now

    def end(self) -> None:
        """The cycle is over, and the server hears what was decided."""
        if self.deciding is not None:
            confirms, self.deciding = self.deciding, None
            told = loop_messages.NodeUpdate("n1", 1, 1, confirms=confirms, lease_s=self.lease_s)
            self.session.update(told)


def walk(world: World, seed: int) -> None:
    """Let things happen in any order until the node's work is given up, or long enough.

    For a while all goes well, then cycles take long, the node is silent or buffers are full.
    """
    dice = random.Random(seed)
    held_back, turns, pause_s = 0, 0.5, 0.3
    for number in range(600):
        if number and number % 60 == 0:
            held_back = dice.choice((0, 0, 1, 2))
            turns = dice.choice((0.5, 0.05, 0.01))
            pause_s = dice.choice((0.3, 0.3, 1.0, world.lease_s / 3))
        step = dice.random()
        if step < 0.25:
            world.elapse(pause_s * dice.random())
        elif step < 0.45:
            world.send(held_back)
        elif step < 0.75:
            world.answer(held_back, late=dice.random() < 0.3)
        elif dice.random() < turns:
            (world.end if world.deciding is not None else world.begin)()
        if world.gave_up_at is not None:
            if world.deciding is None:
                return  # the server knows, and tells the node
            assert world.lease_ends_at <= world.gave_up_at, seed


@pytest.mark.parametrize("times", [(4.0, 0.0), (10.0, 0.0), (2.0, 12.0)])
def test_no_lease_holds_what_was_given_up(times: tuple[float, float]) -> None:
    lost = renewed = 0
    for seed in range(400):
        world = World(*times)
        walk(world, seed)
        lost += world.gave_up_at is not None
        renewed += world.renewals
    assert lost > 100, "stories in which nothing is given up show nothing"
    assert renewed > 5_000, "nor do those in which nothing is renewed"


def test_a_loop_that_takes_its_time_makes_no_node_wait() -> None:
    world = World(10.0)
    world.send()
    world.begin()
    world.end()
    world.answer()
    world.begin()  # and does not end
    for _ in range(100):
        world.elapse(2.0)
        world.send()
        world.answer()
        assert world.lease_ends_at == world.now + 10.0


def test_what_the_loop_may_not_have_read_renews_nothing() -> None:
    world = World(10.0)
    world.send()
    world.begin()
    world.end()
    world.answer()
    for _ in range(6):
        world.elapse(2.5)
        world.send(held_back=2)
        world.answer(held_back=2)
    world.begin()
    assert world.gave_up_at == 15.0
    assert world.lease_ends_at == 10.0
