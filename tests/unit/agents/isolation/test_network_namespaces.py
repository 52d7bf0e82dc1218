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


def test_names_are_written_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be of somebody else, and the nodes of root."""
    monkeypatch.setattr(network_namespaces, "_ip", lambda *_: None)
    theirs, folder = tmp_path / "theirs", tmp_path / "state"
    theirs.write_text("kept")
    theirs.chmod(0o600)
    folder.mkdir()
    network = network_namespaces.Network(folder)
    (folder / network_namespaces.HOSTS_FILE).symlink_to(theirs)
    with pytest.raises(network_namespaces.NetworkError, match="names of nodes can't be written"):
        network.add("a", 1)
    assert (theirs.read_text(), theirs.stat().st_mode & 0o777) == ("kept", 0o600)
