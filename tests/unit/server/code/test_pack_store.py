"""Packs are kept by what they hold and counted for whoever sent them, within limits."""

import contextlib
import hashlib
import os
from pathlib import Path

import pytest

from reconciler.server.code import pack_store

ADA, BOB = "ada@x.org", "bob@x.org"
NOBODYS = pack_store.named_by([])


class Clock:
    """Seconds that go by when somebody says so."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def packs(tmp_path: Path, clock: Clock) -> pack_store.PackStore:
    """Room for 1000 bytes of one person, and for 1500 of all."""
    return pack_store.PackStore(tmp_path, clock, (1000, 1500))


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def sent(data: bytes, *people: str, sender: str = "") -> pack_store.SentPack:
    """Return the announcement of a pack: by default each person sends their own."""
    people = people or (ADA,)
    return pack_store.SentPack(digest_of(data), sender or people[0], people, len(data))


def send(packs: pack_store.PackStore, data: bytes, *people: str) -> str:
    digest = digest_of(data)
    with packs.receive(sent(data, *people)) as incoming:
        incoming.add(data[:1])
        incoming.add(data[1:])
    return digest


def kept(folder: Path) -> set[str]:
    """Return the digests of packs on disk, each with its note."""
    found = {f"sha256:{path.stem.removeprefix('code-')}" for path in folder.glob("code-*.tar")}
    assert len(found) == len(list(folder.glob("code-*.json")))
    assert list(folder.glob("*.part")) == []
    return found


def test_what_was_sent_is_given_to_jobs_of_its_sender(
    packs: pack_store.PackStore, tmp_path: Path
) -> None:
    digest = send(packs, b"code")
    assert packs.piece(digest, ADA, 0) == b"code"
    assert packs.piece(digest, ADA, 3) == b"e"
    assert packs.piece(digest, ADA, 4) == b""
    for owner in (BOB, ""):
        with pytest.raises(pack_store.PackError, match="was not sent by"):
            packs.piece(digest, owner, 0)
    assert not packs.is_there(digest, [BOB])
    send(packs, b"code", BOB)
    assert packs.is_there(digest, [ADA, BOB])
    assert kept(tmp_path) == {digest}
    again = pack_store.PackStore(tmp_path)
    assert again.piece(digest, BOB, 0) == b"code", "another process knows it, too"


@pytest.mark.parametrize(
    ("came", "told"),
    [(b"cod", "found a pack with the digest"), (b"c0de", "found a pack"), (b"code!", "longer")],
)
def test_what_is_something_else_is_not_kept(
    packs: pack_store.PackStore, tmp_path: Path, came: bytes, told: str
) -> None:
    with (
        pytest.raises(pack_store.PackError, match=told),
        packs.receive(sent(b"code")) as incoming,
    ):
        incoming.add(came)
    assert kept(tmp_path) == set()


def test_each_person_has_a_limit_and_so_have_all(packs: pack_store.PackStore) -> None:
    first = send(packs, b"a" * 900)
    with pytest.raises(pack_store.PackRoomError, match=r"ada@x\.org .* cancel jobs"):
        send(packs, b"b" * 101)
    send(packs, b"a" * 900)  # the same again takes nothing
    with pytest.raises(pack_store.PackRoomError, match="the controller keeps code of at most"):
        send(packs, b"c" * 601, BOB)
    send(packs, b"c" * 600, BOB)
    assert packs.is_there(first, [ADA])


def test_what_is_being_received_counts(packs: pack_store.PackStore) -> None:
    with contextlib.suppress(pack_store.PackError), packs.receive(sent(b"x" * 900)):
        with pytest.raises(pack_store.PackRoomError):
            send(packs, b"b" * 101)
        send(packs, b"b" * 100)
    send(packs, b"b" * 900)


def test_few_may_be_received_at_once(
    packs: pack_store.PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_store, "PERSON_UPLOADS_MAX", 1)
    with contextlib.suppress(pack_store.PackError), packs.receive(sent(b"x")):
        with pytest.raises(pack_store.PackTurnError, match="1 packs of code are being sent"):
            send(packs, b"b")
        send(packs, b"b", BOB)


def test_who_sends_for_many_sends_as_few_at_once(
    packs: pack_store.PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_store, "PERSON_UPLOADS_MAX", 1)
    with contextlib.suppress(pack_store.PackError), packs.receive(sent(b"x", ADA, sender="ci")):
        with (
            pytest.raises(pack_store.PackTurnError, match="1 by ci"),
            packs.receive(sent(b"y", BOB, sender="ci")),
        ):
            pass
        send(packs, b"b", ADA)


def test_small_packs_of_one_person_do_not_take_all_places(
    packs: pack_store.PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_store, "PERSON_PACKS_MAX", 2)
    send(packs, b"a")
    send(packs, b"b")
    with pytest.raises(pack_store.PackRoomError, match=r"ada@x\.org has 2 packs of code"):
        send(packs, b"c")
    send(packs, b"b")  # which is there
    send(packs, b"c", BOB)


def test_room_on_the_disk_is_kept_for_what_is_being_sent(
    packs: pack_store.PackStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = os.statvfs(tmp_path)
    free = space.f_bavail * space.f_frsize
    monkeypatch.setattr(pack_store, "FREE_BYTES_MIN", free - 2**30)  # others write here, too
    big = pack_store.PackStore(tmp_path, Clock(), (2**40, 2**40))
    half = 6 * 2**29 // 4
    with (
        contextlib.suppress(pack_store.PackError),
        big.receive(pack_store.SentPack(digest_of(b"x"), ADA, (ADA,), half)),
        pytest.raises(pack_store.PackRoomError, match="has no room"),
        big.receive(pack_store.SentPack(digest_of(b"y"), BOB, (BOB,), half)),
    ):
        pass


def test_a_disk_without_room_is_told(
    packs: pack_store.PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_store, "FREE_BYTES_MIN", 2**62)
    with pytest.raises(pack_store.PackRoomError, match="the disk of the controller has no room"):
        send(packs, b"b")


def test_what_no_job_names_goes_when_it_is_old(
    packs: pack_store.PackStore, tmp_path: Path, clock: Clock
) -> None:
    named, old, used = send(packs, b"named"), send(packs, b"old"), send(packs, b"used")
    clock.now += pack_store.AGE_S - 1
    assert packs.prune(NOBODYS) == 0
    assert packs.is_there(used, [ADA])
    clock.now += 2
    assert packs.prune(pack_store.named_by([(named, False)])) == 1
    assert kept(tmp_path) == {named, used}
    with pytest.raises(pack_store.PackError, match="is not on the controller"):
        packs.piece(old, ADA, 0)


def test_room_is_made_of_what_only_jobs_name_that_are_over(
    packs: pack_store.PackStore, tmp_path: Path, clock: Clock
) -> None:
    """The oldest first, no more than needed, and nothing of the last hour or of others."""
    over, alive = send(packs, b"a" * 300), send(packs, b"b" * 300)
    shared = send(packs, b"s" * 300, ADA, BOB)
    clock.now += pack_store.SHORT_AGE_S + 1
    fresh = send(packs, b"f" * 100)
    named = pack_store.named_by([(over, False), (alive, True), (shared, False), (fresh, False)])
    packs.make_room(ADA, 200, named)
    assert kept(tmp_path) == {alive, shared, fresh}
    send(packs, b"g" * 300)
    packs.make_room(ADA, 300, named)
    assert kept(tmp_path) == {alive, shared, fresh, digest_of(b"g" * 300)}
    assert packs.is_there(shared, [BOB])
    assert not packs.is_there(shared, [ADA])


def test_files_that_are_no_packs_are_left_alone(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "code-notes.json").write_text("mine")
    (tmp_path / f"code-{'0' * 64}.json").write_text("torn")
    (tmp_path / f"code-{'0' * 64}.tar").write_text("x")
    (tmp_path / "code-1234.part").write_text("x")
    packs = pack_store.PackStore(tmp_path, clock)
    digest = send(packs, b"code")
    assert packs.piece(digest, ADA, 0) == b"code"
    assert (tmp_path / "code-notes.json").read_text() == "mine"
    assert not (tmp_path / "code-1234.part").exists()
