"""Reports of agents that are older than this controller: their tasks have sane records."""

from typing import Any

import msgspec

from reconciler.model.protocol import agent_messages
from reconciler.model.state.states import AttemptState, JobState
from tests.unit.core.world import World, job

#: What agents sent of a task in their first week: nothing of storage, and of GPUs nothing either.
OLDEST: dict[str, Any] = {
    "id": "", "state": "Running", "started_at": None, "ended_at": None, "exit_code": None,
    "signal": None, "end_reason": None, "message": "", "max_memory_bytes": 0, "cpu_s": 0.0,
    "checkpoint": None,
}  # fmt: skip
INVENTORY: dict[str, Any] = {
    "hostname": "vm", "address": "127.0.0.1",
    "capacity": {"cpu_milli": 4000, "memory_bytes": 2**31, "gpu_milli": 1000},
    "gpus": [
        {"index": 0, "uuid": "GPU-0", "model": "H100", "memory_bytes": 2**34, "simulated": False}
    ],
    "kernel": "6.18", "agent_version": "0.1.0", "virtual": False, "runs_as_root": True,
    "isolation": {"kind": "cgroup-v1", "enforces": ["memory", "cpu", "cpuset", "devices", "pids"]},
}  # fmt: skip


def read(**attempt: Any) -> agent_messages.SyncRequest:
    """A request of such an agent, as the server reads it."""
    sent = {
        "node": "n0", "boot_id": "b", "incarnation": "i", "have": [0, 0], "wait_s": 30.0,
        "sequence": 1, "inventory": INVENTORY, "attempts": [{**OLDEST, **attempt}],
        "accepts_unrenewed": True,
    }  # fmt: skip
    return msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=agent_messages.SyncRequest)


def test_a_job_runs_to_its_end_and_nothing_counts_as_measured() -> None:
    world = World(nodes=1, gpu=1)
    world.commit(job("a", gpu=1))
    world.settle()
    (attempt,) = world.attempts("a")
    ended = read(
        id=attempt.id, state="Ended", started_at=world.now, ended_at=world.now + 5, exit_code=0,
        end_reason="Exited", max_memory_bytes=782_336, cpu_s=0.25,
    )  # fmt: skip
    (report,) = ended.attempts
    world.nodes["n0"].attempts[attempt.id] = report
    world.hear()
    world.cycle()
    assert world.state("a") is JobState.SUCCEEDED
    (record,) = [one for one in world.outcomes[-1].attempts if one.id == attempt.id]
    assert (record.state, record.exit_code, record.cpu_s) == (AttemptState.ENDED, 0, 0.25)
    assert (record.measured_gpu_s, record.busy_gpu_s) == (0.0, 0.0)


def test_what_such_an_agent_does_not_tell_is_not_known() -> None:
    request = read()
    assert request.inventory is not None
    assert request.inventory.agent_version == "0.1.0"
    assert (request.held, request.gpu_usage, request.task_use) == (None, None, None)
    assert request.folder_proof == ""
