"""What is counted over all jobs is counted only so often; what a commit changed is seen at once."""

import pathlib
import threading

import pytest
import sqlalchemy as sa

from reconciler.model.state import outcome
from reconciler.model.state.states import JobState
from reconciler.server import recent_reader
from reconciler.store import Store, StoreReader
from reconciler.store.sql_store import CycleExtras
from tests.unit.store import samples

WAIT_S = 20.0


class Clocks:
    """Clocks that stand still but for what computing costs."""

    def __init__(self, cost_s: float) -> None:
        self.now, self.cpu, self.cost_s, self.computed = 0.0, 0.0, cost_s, 0

    def compute(self) -> int:
        self.computed += 1
        self.cpu += self.cost_s
        self.now += self.cost_s
        return self.computed

    def value(self) -> recent_reader.RecentValue[int]:
        return recent_reader.RecentValue(self.compute, lambda: self.now, lambda: self.cpu)


def test_what_costs_little_is_computed_each_time() -> None:
    clocks = Clocks(cost_s=recent_reader.CPU_S_MIN)
    value = clocks.value()
    assert [value.get() for _ in range(3)] == [1, 2, 3]


def test_what_costs_much_takes_a_part_of_the_time() -> None:
    clocks = Clocks(cost_s=0.05)
    value = clocks.value()
    while clocks.now < 100.0:
        value.get()
        clocks.now += 0.01
    assert clocks.cpu <= 100.0 / recent_reader.PARTS * 1.05


def test_while_one_computes_others_get_the_value_before() -> None:
    begun, over = threading.Event(), threading.Event()
    clocks = Clocks(cost_s=0.05)

    def compute() -> int:
        found = clocks.compute()
        if found == 3:
            begun.set()
            over.wait(WAIT_S)
        return found

    value = recent_reader.RecentValue(compute, lambda: clocks.now, lambda: clocks.cpu)
    assert [value.get(), value.get(), value.get()] == [1, 2, 2]
    clocks.now += 1.5
    other = threading.Thread(target=value.get)
    other.start()
    try:
        assert begun.wait(WAIT_S)
        assert value.get() == 2
    finally:
        over.set()
        other.join(WAIT_S)
    assert value.get() == 3


def test_what_is_long_outdated_is_waited_for() -> None:
    """Nobody asked for half a day: who comes while one computes does not get the old value."""
    begun, over = threading.Event(), threading.Event()
    clocks = Clocks(cost_s=0.05)

    def compute() -> int:
        found = clocks.compute()
        if found == 3:
            begun.set()
            assert over.wait(WAIT_S)
        return found

    class Turn:
        """A lock that lets the computing thread go on once another waits for it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, *, blocking: bool = True) -> bool:
            if blocking and begun.is_set():
                over.set()
            return self._lock.acquire(blocking)

    value = recent_reader.RecentValue(compute, lambda: clocks.now, lambda: clocks.cpu)
    value._turn = Turn()  # type: ignore[assignment]
    assert [value.get(), value.get(), value.get()] == [1, 2, 2]
    clocks.now += 43_200.0
    other = threading.Thread(target=value.get)
    other.start()
    try:
        assert begun.wait(WAIT_S)
        assert value.get() == 3
    finally:
        over.set()
        other.join(WAIT_S)


def test_after_an_error_it_is_computed_again() -> None:
    clocks = Clocks(cost_s=0.05)

    def compute() -> int:
        if clocks.compute() == 1:
            raise RuntimeError("not now")
        return clocks.computed

    value = recent_reader.RecentValue(compute, lambda: clocks.now, lambda: clocks.cpu)
    with pytest.raises(RuntimeError):
        value.get()
    assert value.get() == 2


class ReaderOfFewJobs(recent_reader.RecentReader):
    """A reader to whom counting costs nothing, however slow the machine is."""

    def __init__(self, url: str, engine: sa.Engine) -> None:
        super().__init__(url, engine, cpu_clock=lambda: 0.0)


def test_each_commit_is_seen_at_once(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = Store.open(url)
    epoch = store.lead("test", 1.0)
    reader = ReaderOfFewJobs.open(url)
    plain = StoreReader.open(url)
    for cycle in range(1, 6):
        jobs = tuple(
            samples.job(f"job-{cycle}-{one}", order=10 * cycle + one, reason_key="why")
            for one in range(3)
        )
        ended = samples.job("job-1-0", state=JobState.SUCCEEDED, order=10)
        store.commit(
            epoch,
            cycle,
            outcome.Outcome(now=float(cycle), desired_generation=1, jobs=(*jobs, ended)),
            CycleExtras(views={"sync": b"%d" % cycle}),
        )
        assert reader.view("sync") == reader.view("sync") == b"%d" % cycle
        assert reader.view("nothing") is None
        assert reader.job_counts() == plain.job_counts()
        names = [f"job-{number}-{one}" for number in range(7) for one in range(3)]
        assert reader.places(names) == plain.places(names)
        assert len(reader.places(names)) == 3 * cycle - 1
    plain.close()
    reader.close()
    store.close()
