"""What records of other leaders in git may do to a controller, with and without a lease."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from reconciler import metrics
from reconciler.changes import lead_records
from reconciler.controller import lead_claim
from reconciler.controller.host import kept_lease
from reconciler.desired.git import git_commands, source
from reconciler.model import desired
from reconciler.model.state import epochs
from tests.unit.desired.repositories import Repository, git, job

NOW = 1_000_000.0
OURS = lead_claim.LedBy("ours", 1, 5, empty=False, host="here", place="p")
NAME = "refs/notes/muster.lead"


@pytest.mark.parametrize(
    ("renewed_at", "until", "seen_s", "blocks"),
    [
        (NOW - 10, NOW + 290, 0, True),
        (NOW - 10, NOW + 290, lead_claim.LEASE_S, False),  # who is alive would have renewed it
        (NOW - 10, NOW - 10, 0, False),  # it was given back
        (NOW - lead_claim.LEASE_S - 1, NOW + 1e9, 0, True),  # its clock may be behind
        (
            NOW - lead_claim.LEASE_S - lead_claim.CLOCKS_S - 1,
            NOW + 1e9,
            0,
            False,
        ),
        (NOW + 1e6, NOW + 1e9, 0, True),  # a clock that is ahead
        (NOW + 1e6, NOW + 1e9, lead_claim.LEASE_S, False),
    ],
)
def test_another_leader_blocks_for_one_lease(
    renewed_at: float, until: float, seen_s: float, *, blocks: bool
) -> None:
    record = lead_records.LeadRecord("theirs", 9, 1, "there", "", "", renewed_at, until)
    verdict = lead_claim.judge(record, OURS, NOW, seen_s)
    assert verdict.past
    assert bool(verdict.blocked) is blocks


@pytest.mark.parametrize(("cycle", "is_past"), [(4, False), (5, False), (6, True)])
def test_a_store_with_fewer_cycles_than_git_knows_is_from_the_past(
    cycle: int, *, is_past: bool
) -> None:
    record = lead_records.LeadRecord("ours", 1, cycle, "there", "", "", NOW - 10, NOW + 290)
    verdict = lead_claim.judge(record, OURS, NOW)
    told = "the store ends with cycle 5, and git knows 6" if is_past else ""
    assert (verdict.past, verdict.blocked) == (told, "")


@pytest.mark.parametrize(
    ("host", "place", "renewed_at", "until", "is_copy"),
    [
        ("there", "q", NOW - 10, NOW + 290, True),
        ("there", "q", NOW - 10, NOW - 10, False),  # it was given back
        ("there", "q", NOW - 900, NOW - 600, False),
        ("there", "p", NOW - 10, NOW + 290, False),  # the folder that this one has locked
        ("here", "q", NOW - 10, NOW + 290, False),  # this machine was started again
    ],
)
def test_a_store_that_another_machine_leads_is_a_copy(
    host: str, place: str, renewed_at: float, until: float, *, is_copy: bool
) -> None:
    record = lead_records.LeadRecord("ours", 1, 4, host, place, "", renewed_at, until)
    verdict = lead_claim.judge(record, OURS, NOW)
    assert bool(verdict.past) is is_copy
    assert not verdict.blocked, "it gets another identity first"


class Bed:
    """A repository, and controllers of one state folder after each other."""

    def __init__(self, repository: Repository, opened: source.GitSource, state: Path) -> None:
        self.repository, self.opened, self.state = repository, opened, state
        revision = repository.commit({"jobs/x.yaml": job("x")})
        opened.fetch()
        self.status = desired.SyncStatus(
            sync="Synced", attempted_revision=revision, jobs_revision=revision
        )
        self.boot = 50.0
        self.verdicts: list[lead_claim.LeadVerdict] = []
        self.claim = self.start()

    def start(self, place: str = "p", epoch: int = 1) -> lead_claim.LeadClaim:
        """Start a controller with the store ``ours``, and let it begin."""
        self.claim = lead_claim.LeadClaim(
            lead_records.RecordPlace(self.opened, lambda: NOW),
            OURS._replace(place=place, epoch=epoch),
            kept_lease.KeptLease(self.state, place, lambda: self.boot),
            cycle=lambda: 5,
            tell=self.verdicts.append,
            clock=lambda: NOW + self.boot,
        )
        self.claim.begin(self.status)
        return self.claim

    def keep(self, after_s: float) -> None:
        self.boot += after_s
        self.claim.keep(self.status)

    def push(self, record: lead_records.LeadRecord | bytes, name: str = NAME) -> None:
        """Replace the reference, as anybody can who may push it."""
        body = record if isinstance(record, bytes) else msgspec.json.encode(record)
        blob = git(self.repository.path, "hash-object", "-w", "--stdin", data=body)
        entry = f"100644 blob {blob}\tlead.json\n".encode()
        tree = git(self.repository.path, "mktree", data=entry)
        commit = git(self.repository.path, "commit-tree", tree, "-m", "x")
        git(self.repository.path, "update-ref", name, commit)

    def push_foreign(self, **changes: object) -> None:
        now = NOW + self.boot
        record = lead_records.LeadRecord(
            "evil", 9, 1, "evilhost", "", "", now, now + lead_claim.LEASE_S
        )
        self.push(msgspec.structs.replace(record, **changes))

    def leader(self) -> str:
        found = json.loads(git(self.repository.path, "cat-file", "blob", f"{NAME}:lead.json"))
        assert isinstance(found["store"], str)
        return found["store"]

    def is_blocked(self) -> bool:
        return bool(self.verdicts[-1].blocked)


@pytest.fixture(params=["remote", "path"])
def bed(request: pytest.FixtureRequest, repository: Repository, tmp_path: Path) -> Iterator[Bed]:
    address = str(repository.path)
    address = f"file://{address}" if request.param == "remote" else address
    state = tmp_path / "state"
    state.mkdir()
    with contextlib.closing(source.GitSource(address, state=state)) as opened:
        yield Bed(repository, opened, state)


ATTACKS = ["foreign", "ours-from-the-future", "removed", "garbage", "long-words", "large"]


def _attack(bed: Bed, what: str) -> None:
    match what:
        case "foreign":
            bed.push_foreign(until=4_102_444_800.0)
        case "ours-from-the-future":
            bed.push_foreign(store="ours", cycle=10**9)
        case "removed":
            git(bed.repository.path, "update-ref", "-d", NAME)
        case "garbage":
            bed.push(b"no record")
        case "long-words":
            bed.push_foreign(host="\x1b[2J" + "x" * 10_000, renewed_at=1e300)
        case _:
            bed.push(b" " * (lead_records._FETCH_BYTES_MAX * 2))


@pytest.mark.parametrize("what", ATTACKS)
def test_a_leader_whose_lease_runs_leads_on_and_writes_its_record_again(
    bed: Bed, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    bed.keep(0)
    for _ in range(3):
        _attack(bed, what)
        bed.keep(lead_claim.RENEW_EVERY_S)
        assert bed.leader() == "ours"
        assert bed.claim.take_restored() == 1
        assert bed.claim.take_restored() == 0
    assert [bool(one.past or one.blocked) for one in bed.verdicts] == [False]
    assert NAME in caplog.text
    assert "\x1b" not in caplog.text
    bed.keep(lead_claim.RENEW_EVERY_S)
    assert bed.claim.take_restored() == 0


@pytest.mark.parametrize("what", ATTACKS)
def test_so_does_one_that_was_killed_and_starts_again_within_its_lease(bed: Bed, what: str) -> None:
    bed.keep(0)
    bed.boot += 20
    _attack(bed, what)
    bed.start(epoch=2)
    bed.keep(1)
    assert bed.leader() == "ours"
    assert bed.claim.take_restored() == 1
    assert not any(one.past or one.blocked for one in bed.verdicts)


@pytest.mark.parametrize("why", ["another folder", "another boot", "its end", "given back"])
def test_without_a_lease_a_controller_waits_one_lease_for_another(bed: Bed, why: str) -> None:
    bed.keep(0)
    if why == "given back":
        bed.claim.release(bed.status)
    bed.boot += lead_claim.LEASE_S if why == "its end" else 10
    bed.push_foreign(until=4_102_444_800.0)
    bed.start(place="p" if why in ("its end", "given back") else why, epoch=2)
    assert bed.is_blocked()
    bed.keep(lead_claim.LEASE_S - 1)
    assert bed.is_blocked()
    assert bed.leader() == "evil"
    bed.keep(lead_claim.LOOK_EVERY_S)
    assert not bed.is_blocked()
    assert bed.verdicts[-1].past
    assert bed.leader() == "ours"
    assert bed.claim.take_restored() == 0


def test_who_knows_that_the_other_is_dead_deletes_its_record_and_ends_the_wait(bed: Bed) -> None:
    bed.claim.release(bed.status)
    bed.push_foreign()
    bed.start(epoch=2)
    assert bed.is_blocked()
    git(bed.repository.path, "update-ref", "-d", NAME)
    bed.keep(lead_claim.LOOK_EVERY_S)
    assert not bed.is_blocked()
    assert bed.leader() == "ours"


def test_a_leader_that_could_not_renew_its_lease_steps_down(bed: Bed) -> None:
    bed.keep(0)
    away = bed.repository.path.with_name("away")
    bed.repository.path.rename(away)
    for _ in range(4):
        bed.keep(lead_claim.LEASE_S / 4)
    away.rename(bed.repository.path)
    assert not bed.is_blocked()
    bed.push_foreign()
    bed.keep(lead_claim.LOOK_EVERY_S)
    assert bed.is_blocked()
    assert bed.leader() == "evil"


def test_one_that_misses_some_renewals_still_has_its_lease(bed: Bed) -> None:
    bed.keep(0)
    away = bed.repository.path.with_name("away")
    bed.repository.path.rename(away)
    bed.keep(lead_claim.LEASE_S / 2)
    away.rename(bed.repository.path)
    bed.push_foreign()
    bed.keep(lead_claim.LEASE_S / 2 - 1)
    assert not bed.is_blocked()
    assert bed.leader() == "ours"


def test_what_cannot_be_read_ends_no_thread_and_counts_for_one_lease(bed: Bed) -> None:
    bed.keep(0)
    bed.boot += lead_claim.LEASE_S
    bed.push(b"no record")
    bed.keep(0)
    bed.keep(lead_claim.LEASE_S - 1)
    assert not bed.is_blocked()
    with pytest.raises(ValueError, match="Expecting value"):
        bed.leader()
    bed.keep(lead_claim.LOOK_EVERY_S)
    bed.keep(lead_claim.LOOK_EVERY_S)
    assert bed.leader() == "ours"


class Killed(NamedTuple):
    """What a killed controller leaves, which had ``jobs/x.yaml`` in force at its last renewal.

    Attributes:
        adds: what comes after that, by when, in seconds after the renewal.
        noted: the last of these that its notes say was in force.
        new: what the next controller may call new.
    """

    adds: dict[str, int]
    noted: str = ""
    gives_back: bool = False
    new: frozenset[str] = frozenset()


LATE = int(lead_claim.LEASE_S + lead_claim.CLOCKS_S) + 1


@pytest.mark.parametrize(
    "killed",
    [
        Killed({"a": LATE, "b": LATE + 1}, new=frozenset("ab")),
        Killed({"a": 30, "b": LATE}, new=frozenset("b")),
        Killed({"a": 30, "b": 40}),
        Killed({"a": LATE, "b": LATE + 1, "c": LATE + 2}, noted="b", new=frozenset("c")),
        Killed({"a": 30, "-a": 40, "b": LATE, "a again": LATE + 1}, new=frozenset("b")),
        Killed({"a": 1, "b": 2}, gives_back=True, new=frozenset("ab")),
        Killed({"a": 1, "b": 2}, noted="a", gives_back=True, new=frozenset("b")),
    ],
    ids=["later", "both", "soon", "noted", "back", "given-back", "noted-and-given-back"],
)
def test_what_a_killed_leader_may_have_applied_after_its_last_record_is_not_new(
    bed: Bed, killed: Killed
) -> None:
    bed.keep(0)
    renewed_at = int(NOW + bed.boot)
    if killed.gives_back:
        bed.claim.release(bed.status)
    for name, after_s in killed.adds.items():
        path = f"jobs/{name.split()[0].strip('-')}.yaml"
        content = None if name.startswith("-") else job(path[5:6])
        head = bed.repository.commit({path: content}, at=renewed_at + after_s)
        if name == killed.noted:
            text = f"muster: Synced with 0 errors; structure of {head[:12]}, jobs of {head[:12]}"
            args = ("notes", "--ref=muster", "add", "-m", f"{text} in force; audit 3 abc", head)
            git(bed.repository.path, *args)
    bed.opened.fetch()
    bed.status = msgspec.structs.replace(bed.status, attempted_revision=head, jobs_revision=head)
    (bed.state / kept_lease.FILE).unlink(missing_ok=True)
    bed.start(epoch=2)
    assert bed.verdicts[-1].new_files == {f"jobs/{name}.yaml" for name in killed.new}


def test_a_branch_of_that_name_says_nothing_of_who_leads(bed: Bed) -> None:
    bed.push_foreign()
    commit = git(bed.repository.path, "rev-parse", NAME)
    git(bed.repository.path, "update-ref", f"refs/heads/{NAME}", commit)
    git(bed.repository.path, "update-ref", f"{NAME}-more/x", commit)
    git(bed.repository.path, "update-ref", "-d", NAME)
    assert lead_records.read(bed.opened, NOW) == (None, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": "--output=/tmp/x"},
        {"host": "a\nb"},
        {"store": "x" * 1000},
        {"renewed_at": 1e300},
        {"renewed_at": -1.0},
        {"epoch": int(NOW) + epochs.EPOCH_AHEAD_S_MAX + 1},
        {"epoch": 2**63 - 1},
        {"epoch": 10**30},
        {"epoch": -1},
        {"cycle": 10**30},
        {"cycle": -1},
    ],
)
def test_a_record_that_no_controller_writes_cannot_be_read(
    bed: Bed, changes: dict[str, object]
) -> None:
    bed.push_foreign(**changes)
    with pytest.raises(lead_records.UnreadableRecordError, match="can't be read"):
        lead_records.read(bed.opened, NOW)


def test_nobody_wins_a_race_against_a_running_lease(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.keep(0)
    find = git_commands.reference_there

    def slow(*arguments: object) -> str:
        found = find(*arguments)  # type: ignore[arg-type]
        bed.push_foreign(cycle=int(bed.boot))
        bed.boot += 1
        return found

    monkeypatch.setattr(git_commands, "reference_there", slow)
    bed.push_foreign()
    bed.keep(lead_claim.RENEW_EVERY_S)
    assert bed.leader() == "ours"


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'{"place": "p", "until": "x"}'])
def test_a_kept_lease_that_cannot_be_read_is_none(tmp_path: Path, body: bytes) -> None:
    (tmp_path / kept_lease.FILE).write_bytes(body)
    assert kept_lease.KeptLease(tmp_path, "p", lambda: 0.0).left_s() == 0


def test_a_kept_lease_is_private_and_of_its_place(bed: Bed) -> None:
    bed.keep(0)
    assert (bed.state / kept_lease.FILE).stat().st_mode & 0o777 == 0o600
    for place, left_s in (("p", lead_claim.LEASE_S), ("q", 0), ("", 0)):
        found = kept_lease.KeptLease(bed.state, place, lambda: bed.boot)
        assert (found.left_s(), found.record is not None) == (left_s, left_s > 0)


def test_the_loop_counts_records_that_were_restored() -> None:
    counters = metrics.Counters()
    for lost in (0, 1, 2):
        counters.look(metrics.RepositoryLook("synced", 1.0, 0.1, lead_records_lost=lost))
    assert counters.lead_records_lost == 3


def test_who_waited_leads_above_the_last_epoch_of_the_other_and_only_with_the_record(
    bed: Bed,
) -> None:
    """The other one has started again meanwhile, and agents know its newer epoch."""
    bed.push_foreign()
    bed.start()
    assert bed.verdicts[-1].above == 9
    for epoch in (20, 30):
        bed.push_foreign(epoch=epoch)
        bed.keep(lead_claim.LOOK_EVERY_S)
        assert bed.is_blocked()
    bed.keep(lead_claim.LEASE_S)
    assert (bed.is_blocked(), bed.verdicts[-1].above) == (False, 30)
    assert bed.leader() == "ours"
    record, _ = lead_records.read(bed.opened, NOW)
    assert record is not None
    assert record.epoch == 31


def test_a_copied_disk_leads_nothing_beside_the_machine_it_was_copied_from(bed: Bed) -> None:
    """Its store is no older than what git knows: the record is renewed now and then only."""
    bed.push_foreign(store="ours", cycle=5, host="there", place="q")
    bed.start()
    (verdict,) = bed.verdicts[-1:]
    assert verdict.past.startswith("there leads with this store")
    assert verdict.store not in {"", "ours"}
    assert bed.is_blocked()
    bed.keep(lead_claim.LEASE_S)
    assert not bed.is_blocked()
    assert bed.verdicts[-1].past, "the other has led since"


def test_an_old_copy_of_the_store_that_led_takes_another_identity(bed: Bed) -> None:
    """Two stores of one identity would be taken for one: that which led may still be alive."""
    bed.push_foreign(store="ours", cycle=6)
    bed.start()
    (verdict,) = bed.verdicts[-1:]
    assert verdict.past == "the store ends with cycle 5, and git knows 6"
    assert verdict.store not in {"", "ours"}
    assert verdict.above == 9
    assert bed.is_blocked()
    bed.keep(lead_claim.LEASE_S)
    assert not bed.is_blocked()
    assert bed.leader() == bed.verdicts[-1].store == verdict.store


def test_of_two_that_wait_for_the_same_end_one_leads(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.push_foreign()
    bed.start()
    bed.keep(lead_claim.LOOK_EVERY_S)
    write = lead_records.write

    def late(*arguments: object) -> str:
        monkeypatch.setattr(lead_records, "write", write)
        bed.push_foreign(store="a third")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lead_records, "write", late)
    bed.keep(lead_claim.LEASE_S)
    assert all(one.blocked for one in bed.verdicts[1:]), (
        "nothing is led before the record is written"
    )
    assert bed.leader() == "a third"


def test_one_controller_has_the_lock_of_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = lead_claim.lock_place(tmp_path)
    found = tmp_path.stat()
    assert place.split(":")[1:] == [str(found.st_dev), str(found.st_ino)]
    assert lead_claim.lock_place(tmp_path) == ""
    assert f"can't be locked: process {os.getpid()} has locked it" in caplog.text


def test_who_locks_the_folder_itself_is_not_asked(tmp_path: Path) -> None:
    """A job's user may open the folder and lock it; so did older controllers, which have ended."""
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert lead_claim.lock_place(tmp_path)
    os.close(descriptor)
