"""Which cores a virtual node gets in its network; ``ip`` itself is run by other tests."""

from pathlib import Path

import pytest

from agents.isolation import network_namespaces


def cores(seat: network_namespaces.Seat) -> int:
    """How many cores what enters a seat may use."""
    words = list(seat.enter)
    return len(words[words.index("--cpu-list") + 1].split(","))


def test_a_node_that_comes_again_with_more_cores_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(network_namespaces, "_ip", lambda *words: ran.append(words))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    network = network_namespaces.Network(tmp_path)
    first, other = network.add("a", 1), network.add("b", 2)
    made = len(ran)
    assert network.add("a", 1) == first
    again = network.add("a", 3)
    assert (cores(first), cores(other), cores(again)) == (1, 2, 3)
    assert again.address == first.address
    assert len(ran) == made  # its namespace stays
