"""What the loop's other threads hand to it: revisions, looks at git, answers of scripts.

The newest desired state supersedes one that was not taken yet; everything else is kept in order and
bounded. A byte in a pipe makes the loop's ``select`` return.
"""

import os
import threading
from collections import deque
from collections.abc import Callable

from reconciler import metrics
from reconciler.core import observed_state
from reconciler.metrics import usage_accounting
from reconciler.model import desired
from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import instance_records, records

#: The most looks at the repository that wait to be counted.
LOOKS_MAX = 1000


class Inbox:
    """What other threads hand to the loop; ``wake`` makes its ``select`` return."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._desired: desired.Desired | None = None
        self._incumbents: bytes | None = None
        self._provisioned: deque[instance_records.OrderResult] = deque()
        #: The newest generation that a cycle passed with, and who is told of it.
        self.adopted = 0
        self.on_adopted: Callable[[], None] = lambda: None
        self._looks: deque[metrics.RepositoryLook] = deque(maxlen=LOOKS_MAX)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    @property
    def descriptor(self) -> int:
        """Readable when there is something."""
        return self._reader

    def put_desired(self, value: desired.Desired, incumbents: bytes | None) -> None:
        """A newer desired state; it supersedes one that was not taken yet.

        ``incumbents`` None: they are as before.
        """
        with self._lock:
            self._desired = value
            if incumbents is not None:
                self._incumbents = incumbents
        self.wake()

    def adopt(self, generation: int) -> None:
        """A cycle passed with a desired state, and is durable: whoever put it may tell of it."""
        if generation > self.adopted:
            self.adopted = generation
            self.on_adopted()

    def put_look(self, look: metrics.RepositoryLook) -> None:
        """The repository was looked at; nothing waits for that to be known."""
        self._looks.append(look)

    def put_provisioned(self, result: instance_records.OrderResult) -> None:
        """A script has answered; there are no more answers than open orders."""
        self._provisioned.append(result)
        self.wake()

    def take_provisioned(self) -> list[instance_records.OrderResult]:
        """What scripts answered since the last time."""
        return [self._provisioned.popleft() for _ in range(len(self._provisioned))]

    def take_looks(self) -> list[metrics.RepositoryLook]:
        """The looks at the repository since the last time."""
        return [self._looks.popleft() for _ in range(len(self._looks))]

    def take_desired(self) -> tuple[desired.Desired | None, bytes | None]:
        """The newest desired state since the last time."""
        with self._lock:
            value, incumbents = self._desired, self._incumbents
            self._desired = self._incumbents = None
        return value, incumbents

    def wake(self) -> None:
        """Make the loop look at once."""
        try:
            os.write(self._writer, b"x")
        except BlockingIOError:
            return  # it is awake already

    def drain(self) -> None:
        """Read away what woke the loop."""
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            return


def report_of(message: loop_messages.Reported) -> records.NodeReport:
    """What a node said, for the next cycle."""
    request = message.request
    return records.NodeReport(
        node=request.node,
        boot_id=request.boot_id,
        incarnation=request.incarnation,
        received_at=message.received_at,
        attempts=request.attempts,
        complete=request.complete,
        sequence=request.sequence,
        inventory=request.inventory,
        usage=request.usage,
        remedies=request.remedies[: agent_messages.REMEDIES_MAX],
    )


def measure(
    message: loop_messages.Reported,
    meter: usage_accounting.Meter,
    state: observed_state.ObservedState,
) -> None:
    """Take down how busy the GPUs of a node's attempts are."""
    node = message.request.node
    if message.gpu_ratios:
        attempts = state.attempts
        meter.reported(
            node,
            dict(message.gpu_ratios),
            message.received_at,
            [attempts[one] for one in state.attempts_by_node.get(node, ()) if one in attempts],
        )
