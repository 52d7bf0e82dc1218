"""A flood of connections without tickets keeps nobody out who has one."""

import contextlib
import resource
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from reconciler.server.relay import waiting_room
from tests.integration import beds
from tests.integration.interactive import people

SLEEPER = "  command: [sleep, '600']\n  resources: {cpu: 1, memory: 256Mi}"
MORE = 200


@pytest.fixture
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    needed = waiting_room.ADDRESS_MAX + MORE + 200
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        pytest.skip(f"this process may not open {needed} files")
    with beds.Bed(tmp_path_factory.mktemp("flood"), nodes=1) as made:
        made.commit({"jobs/sleeper.yaml": beds.job("sleeper", SLEEPER)})
        made.until_state("sleeper", "Running")
        yield made


def _port(bed: beds.Bed) -> int:
    """The relay's port, with a ticket that nobody uses."""
    assert bed.api is not None
    granted = bed.api.post("/v1/jobs/sleeper/sessions", {"kind": "exec", "argv": ["true"]})
    return int(granted["port"])


def test_who_has_a_ticket_gets_in(bed: beds.Bed) -> None:
    place = ("127.0.0.1", _port(bed))
    silent: list[socket.socket] = []
    over = threading.Event()

    def flood() -> None:
        """Open connections that say nothing, faster than they time out, until told to stop."""
        while not over.wait(0.001):
            with contextlib.suppress(OSError):
                silent.append(socket.create_connection(place, 30))
            while len(silent) > waiting_room.ADDRESS_MAX + MORE:
                silent.pop(0).close()

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        people.until(lambda: len(silent) >= waiting_room.ADDRESS_MAX + MORE, "the flood")
        for _ in range(3):
            done = people.muster(bed, "exec", "sleeper", "--", "echo", "in")
            assert (done.returncode, done.stdout) == (0, b"in\n"), done.stderr
        over.set()
        flooding.join()
        people.until(lambda: len(_ended(silent)) >= MORE, "the end of the oldest")
    finally:
        over.set()
        flooding.join()
        for link in silent:
            link.close()
    told = "connections were closed that had shown no ticket, most lately of 127.0.0.1"
    people.until(lambda: told in _log(bed), "the word of it")


def _log(bed: beds.Bed) -> str:
    return "".join(path.read_text() for path in bed.cluster.state.glob("**/*relay*.log"))


def _ended(links: list[socket.socket]) -> list[socket.socket]:
    """Those that the other end has closed."""
    poller = select.poll()
    for link in links:
        poller.register(link, select.POLLIN)
    return [link for link in links if link.fileno() in {one for one, _ in poller.poll(0)}]
