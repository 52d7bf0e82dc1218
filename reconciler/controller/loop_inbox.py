"""The queue of what other threads hand to the loop: revisions, looks at git, provisioner results.

The newest desired state replaces one that was not taken yet. Everything else is kept in order and
bounded. A byte in a pipe wakes the loop's ``select``.
"""

import os
import threading
from collections import deque
from collections.abc import Callable

from reconciler import metrics
from reconciler.controller import lead_claim
from reconciler.core import observed_state
from reconciler.engines import assignment_proofs
from reconciler.metrics import usage_accounting
from reconciler.model import desired
from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import instance_records, records

#: The most looks at the repository that wait to be counted.
LOOKS_MAX = 1000
#: The most verdicts about the store that wait. The newest counts.
VERDICTS_MAX = 10


class Inbox:
    """A thread-safe inbox of the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._desired: desired.Desired | None = None
        self._incumbents: bytes | None = None
        self._provisioned: deque[instance_records.OrderResult] = deque()
        self._verdicts: deque[lead_claim.LeadVerdict] = deque(maxlen=VERDICTS_MAX)
        #: The newest generation of a durable cycle, and the callback for it.
        self.adopted = 0
        self.on_adopted: Callable[[], None] = lambda: None
        self._looks: deque[metrics.RepositoryLook] = deque(maxlen=LOOKS_MAX)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    @property
    def descriptor(self) -> int:
        """The file descriptor that becomes readable when there is something."""
        return self._reader

    def put_desired(self, value: desired.Desired, incumbents: bytes | None) -> None:
        """Hand over a desired state. It replaces one that was not taken yet.

        Args:
            value: the desired state.
            incumbents: what is stored with it for a restart; None: as before.
        """
        with self._lock:
            self._desired = value
            if incumbents is not None:
                self._incumbents = incumbents
        self.wake()

    def adopt(self, generation: int) -> None:
        """Note that a cycle with this desired state is durable, so that it may be reported."""
        if generation > self.adopted:
            self.adopted = generation
            self.on_adopted()

    def put_verdict(self, verdict: lead_claim.LeadVerdict) -> None:
        """Hand over what the record in git says of the store."""
        self._verdicts.append(verdict)
        self.wake()

    def take_verdicts(self) -> list[lead_claim.LeadVerdict]:
        """Return the verdicts since the last call."""
        return [self._verdicts.popleft() for _ in range(len(self._verdicts))]

    def put_look(self, look: metrics.RepositoryLook) -> None:
        """Hand over the result of a look at the repository. It does not wake the loop."""
        self._looks.append(look)

    def put_provisioned(self, result: instance_records.OrderResult) -> None:
        """Hand over the result of a provisioner script.

        There are no more results than open orders.
        """
        self._provisioned.append(result)
        self.wake()

    def take_provisioned(self) -> list[instance_records.OrderResult]:
        """Return the provisioner results since the last call."""
        return [self._provisioned.popleft() for _ in range(len(self._provisioned))]

    def take_looks(self) -> list[metrics.RepositoryLook]:
        """Return the looks at the repository since the last call."""
        return [self._looks.popleft() for _ in range(len(self._looks))]

    def take_desired(self) -> tuple[desired.Desired | None, bytes | None]:
        """Return the newest desired state since the last call, with its incumbents."""
        with self._lock:
            value, incumbents = self._desired, self._incumbents
            self._desired = self._incumbents = None
        return value, incumbents

    def wake(self) -> None:
        """Wake the loop."""
        try:
            os.write(self._writer, b"x")
        except BlockingIOError:
            return  # it is awake already

    def drain(self) -> None:
        """Read the bytes that woke the loop."""
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            return


def report_of(
    message: loop_messages.Reported, proofs: assignment_proofs.AssignmentProofs
) -> records.NodeReport:
    """Return a node's report as the next cycle reads it, with its proofs judged."""
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
        held=request.held,
        proven=proofs.proven(request.node, request.proofs),
    )


def measure(
    message: loop_messages.Reported,
    meter: usage_accounting.Meter,
    state: observed_state.ObservedState,
) -> None:
    """Meter how busy the GPUs of a node's attempts are."""
    node = message.request.node
    if message.gpu_ratios:
        attempts = state.attempts
        meter.reported(
            node,
            dict(message.gpu_ratios),
            message.received_at,
            [attempts[name] for name in state.attempts_by_node.get(node, ()) if name in attempts],
        )
