"""A borrower that room was promised does not start only to leave again."""

from reconciler.model import desired
from tests.unit.core.world import World, job


def test_who_would_take_promised_room_back_at_once_starts_instead() -> None:
    """Its limit was full when the room was promised: what leaves counts until it has left."""
    own = desired.QuotaAmounts(cpu_milli=2000)
    queues = (desired.Queue("owner", guaranteed=own, limit=own), desired.Queue("team"))
    world = World(nodes=2, cpu=2, queues=queues)
    world.commit(job("first", queue="owner", cpu=2, preemptible=False))
    world.settle()
    world.commit(job("gang", queue="team", cpu=2, count=2))
    world.commit(job("second", queue="owner", cpu=2))
    world.cycle()
    world.commit(remove=("first",))
    world.cycle()  # it is told to stop, and its room is promised
    states = []
    for _ in range(3):
        world.settle()
        states.append({name: world.states()[name] for name in ("gang", "second")})
    assert states == [{"gang": "Pending", "second": "Running"}] * 3
    assert world.memory.jobs["gang"].notes == {}
