"""The agent's main loop: keeps a supervisor connected and reads its reports until the agent stops.

It also notices that the process ends which started the agent, if the agent must end with it.
"""

import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import NamedTuple

from agents import parent_watch
from agents.supervisor import client
from reconciler.model.state.records import AttemptReport

#: Wait before connecting to the supervisor is tried again.
RETRY_S = 10.0


class SupervisorEvents(NamedTuple):
    """The callbacks of the loop, made in the main thread and without the agent's lock.

    Attributes:
        connected: called with the reports of all attempts that the supervisor knows.
        reported: called with the reports that have just come.
        lost: called if the supervisor has gone.
        parent_ended: called if the process has ended that the agent must end with.
        say: shows a message to the operator.
    """

    connected: Callable[[list[AttemptReport]], None]
    reported: Callable[[list[AttemptReport]], None]
    lost: Callable[[], None]
    parent_ended: Callable[[], None]
    say: Callable[[str], None]


class WakeUp:
    """A pipe that wakes the loop, which then checks if the agent stops."""

    def __init__(self) -> None:
        self.handle, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self) -> None:
        """Wake the loop, from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")

    def clear(self) -> None:
        """Wait for the next wake-up."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.handle, 4096)


class MainLoop:
    """The main loop of one agent.

    Args:
        parent: process that the agent ends with; 0: the one that started it; None: none.
    """

    def __init__(
        self,
        supervisor: client.SupervisorClient,
        events: SupervisorEvents,
        leaving: threading.Event,
        wake: WakeUp,
        parent: int | None,
    ) -> None:
        self._supervisor = supervisor
        self._events = events
        self._leaving = leaving
        self._parent = parent
        self._wake = wake

    def connect(self) -> None:
        """Connect to the supervisor, starting one if there is none, however long that takes."""
        while not self._leaving.is_set():
            try:
                reports = self._supervisor.connect(self._leaving)
            except (client.SupervisorError, OSError) as problem:
                if not self._leaving.is_set():
                    self._events.say(f"{problem}; trying again")
                self._leaving.wait(RETRY_S)
            else:
                self._events.connected(reports)
                return

    def run(self) -> None:
        """Read reports until the agent stops."""
        parent = None
        try:
            parent = parent_watch.watch(self._parent)
        except ProcessLookupError:
            self._events.parent_ended()
        while not self._leaving.is_set():
            poller = select.poll()
            poller.register(self._wake.handle, select.POLLIN)
            if self._supervisor.link is not None:
                poller.register(self._supervisor.link, select.POLLIN)
            if parent is not None:
                poller.register(parent, select.POLLIN)
            for handle, _ in poller.poll():
                if handle == self._wake.handle:
                    self._wake.clear()
                elif handle == parent:
                    self._events.parent_ended()
                else:
                    self._receive()

    def _receive(self) -> None:
        """Handle what the supervisor has sent; if it has gone, connect to another one."""
        reports = self._supervisor.receive()
        if reports is not None:
            self._events.reported(reports)
        elif not self._leaving.is_set():
            self._events.lost()
            self.connect()
