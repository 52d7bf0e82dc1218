"""Usage of nodes reaches the store within a minute even if no cycle is committed for it."""

import time
from pathlib import Path

import msgspec

from reconciler.controller import control_loop, loop_inbox
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.store import sql_store
from tests.unit.core.world import World


def test_usage_of_all_nodes_is_committed_once_a_minute(tmp_path: Path) -> None:
    world = World(nodes=3)
    now = [world.now]
    inbox = loop_inbox.Inbox()
    store = sql_store.Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    loop = control_loop.Loop(
        led=sql_store.LedStore(store, store.lead("test", now[0])),
        socket_path=tmp_path / "loop.sock",
        inbox=inbox,
        clock=lambda: now[0],
    )
    wanted = desired.Desired(1, world.structure, status=desired.SyncStatus(sync="Synced"))
    inbox.put_desired(wanted, b"")
    loop._take_desired()

    def say(name: str, load: float) -> None:
        usage = records.NodeUsage(at=now[0], load_1m=load)
        report = world.nodes[name].report(now[0])
        loop._state.add_report(msgspec.structs.replace(report, usage=usage))

    def stored() -> list[float]:
        return [node.usage.load_1m for node in store.reader.nodes()]

    for name in world.nodes:
        say(name, 1.0)
    loop.cycle()
    cycle = store.cycle
    for number, name in enumerate(world.nodes):
        now[0] += 19
        say(name, 2.0 + number)
        loop.cycle()
        assert stored() == [1.0, 1.0, 1.0]
    now[0] += 4
    say("n0", 5.0)
    loop.cycle()
    assert store.cycle == cycle + 1
    assert stored() == [5.0, 3.0, 4.0]
    assert {node.name: node for node in store.reader.nodes()} == loop._state.nodes
    loop._link.close()
    loop._selector.close()
    store.close()


def test_setting_the_clock_back_is_answered_by_a_cycle_at_once(tmp_path: Path) -> None:
    world = World(nodes=1)
    ahead_s = [0.0]
    inbox = loop_inbox.Inbox()
    store = sql_store.Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    loop = control_loop.Loop(
        led=sql_store.LedStore(store, store.lead("test", time.time())),
        socket_path=tmp_path / "loop.sock",
        inbox=inbox,
        clock=lambda: time.time() + ahead_s[0],
    )
    inbox.put_desired(desired.Desired(1, world.structure), b"")
    assert loop._wait()
    loop._state.add_report(world.nodes["n0"].report(time.time()))
    assert loop.cycle() is not None
    inbox.wake()
    assert not loop._wait()
    ahead_s[0] = -7200
    inbox.wake()
    assert loop._wait()
    loop.cycle()
    node = loop._state.nodes["n0"]
    assert node.last_report_at < time.time() - 7000
    inbox.wake()
    assert not loop._wait()
    loop._link.close()
    loop._selector.close()
    store.close()
