"""Which connections without a ticket are closed when there are too many."""

import socket

import pytest

from reconciler.server.relay import waiting_room


class Link:
    """A connection, and whether it was closed."""

    def __init__(self, handle: int = 3) -> None:
        self.handle = handle
        self.ended = False

    def fileno(self) -> int:
        return self.handle

    def shutdown(self, how: int, /) -> None:
        assert how == socket.SHUT_RDWR
        self.ended = True


def _enter(room: waiting_room.WaitingRoom, host: str, *ports: int) -> list[Link]:
    links = []
    for port in ports:
        links.append(Link())
        room.enter((host, port), links[-1])
    return links


def test_the_oldest_of_an_address_goes_when_it_has_too_many() -> None:
    room = waiting_room.WaitingRoom(address_max=2, total_max=10)
    mine, links = _enter(room, "10.0.0.1", 1), _enter(room, "10.0.0.2", 1, 2, 3, 4)
    assert [link.ended for link in links] == [True, True, False, False]
    assert not mine[0].ended
    assert room.told() == (2, "10.0.0.2")
    assert room.told()[0] == 0
    assert len(room) == 3


def test_in_total_the_address_with_most_pays() -> None:
    room = waiting_room.WaitingRoom(address_max=5, total_max=4)
    links = _enter(room, "10.0.0.2", 1, 2, 3)
    mine = [_enter(room, f"10.0.1.{number}", 1)[0] for number in range(3)]
    assert [link.ended for link in links] == [True, True, False]
    assert not any(link.ended for link in mine)
    assert len(room) == 4


def test_who_has_shown_a_ticket_does_not_count() -> None:
    room = waiting_room.WaitingRoom(address_max=2, total_max=2)
    links = _enter(room, "10.0.0.2", 1)
    room.leave(("10.0.0.2", 1))
    room.leave(("10.0.0.2", 1))
    links += _enter(room, "10.0.0.2", 2, 3)
    assert not any(link.ended for link in links)
    assert len(room) == 2


def test_what_has_ended_by_itself_makes_room_and_is_not_told() -> None:
    room = waiting_room.WaitingRoom(address_max=2, total_max=9)
    gone, *_ = _enter(room, "10.0.0.2", 1, 2)
    gone.handle = -1
    _enter(room, "10.0.0.2", 3)
    assert not gone.ended
    assert room.told()[0] == 0
    assert len(room) == 2


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_stands_for_its_owner(host: str, place: str) -> None:
    assert waiting_room.place_of((host, 1, 0, 0)) == place


def test_a_listener_tells_of_connections_before_they_say_anything() -> None:
    room = waiting_room.WaitingRoom(address_max=1)
    (listener,) = waiting_room.listeners("127.0.0.1", 0, room)
    with listener:
        listener.listen()
        listener.settimeout(30)
        place = listener.getsockname()
        with socket.create_connection(place, 30) as first, socket.create_connection(place, 30):
            accepted = [listener.accept()[0] for _ in range(2)]
            assert first.recv(1) == b""
            for link in accepted:
                link.close()
    assert room.told() == (1, "127.0.0.1")


def test_all_addresses_of_a_host_have_the_same_port() -> None:
    made = waiting_room.listeners("", 0, waiting_room.WaitingRoom())
    ports = {listener.getsockname()[1] for listener in made}
    for listener in made:
        listener.close()
    assert len(ports) == 1
