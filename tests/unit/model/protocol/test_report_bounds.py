"""What a node says is bounded in every part, and safe to show, before anybody keeps it."""

import math
from typing import Any

import msgspec
import pytest

from reconciler.model.observed import devices, host_facts, task_reports
from reconciler.model.protocol import agent_messages, report_bounds
from reconciler.model.state import records, states

EVIL = 'x"}\n<script>\x1b]0;PWNED\x07\x1b[2J\x9b1m\u202e'
RUNNING = states.AttemptState.RUNNING
LONG = "x" * (report_bounds.NAME_CHARACTERS_MAX + 1)


def report(**fields: Any) -> agent_messages.SyncRequest:
    return agent_messages.SyncRequest("n1", **({"boot_id": "b", "incarnation": "i"} | fields))


def attempts(count: int, **fields: Any) -> tuple[records.AttemptReport, ...]:
    return tuple(records.AttemptReport(f"a{number}", RUNNING, **fields) for number in range(count))


def has(**fields: Any) -> agent_messages.SyncRequest:
    return report(inventory=records.Inventory(**fields))


def mounts(path: str, kind: str = "", count: int = 1) -> host_facts.Host:
    return host_facts.Host(mounts=(host_facts.Mount(path, kind),) * count)


def mig_instance(text: str) -> devices.MigInstance:
    return msgspec.convert(
        {"uuid": text, "profile": text, "gpu_instance": 1, "compute_instance": 0},
        devices.MigInstance,
    )


def strings(value: Any) -> list[str]:
    """Every string that a value holds."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [each for pair in value.items() for one in pair for each in strings(one)]
    if isinstance(value, tuple):
        return [each for one in value for each in strings(one)]
    names = getattr(value, "__struct_fields__", ())
    return [each for name in names for each in strings(getattr(value, name))]


def test_what_an_agent_says_passes_as_it_is() -> None:
    said = report(
        inventory=records.Inventory(
            labels={"zone": "a"},
            gpus=(
                records.Gpu(0, "GPU-1", "H200", nvlinks=(devices.NvLinkPeer("gpu", "0000:1", 4),)),
            ),
            host=host_facts.Host(mounts=(host_facts.Mount("/", "ext4"),)),
        ),
        attempts=attempts(3, message="it runs"),
        follows=("one", "two"),
    )
    assert report_bounds.bounded(said) == said


def test_no_control_character_passes_anywhere() -> None:
    said = report(
        inventory=records.Inventory(
            *(EVIL, EVIL),
            labels={EVIL: EVIL},
            kernel=EVIL,
            notice=EVIL,
            gpus=(records.Gpu(0, EVIL, EVIL, message=EVIL, mig=(mig_instance(EVIL),)),),
            host=host_facts.Host(mounts=(host_facts.Mount(EVIL, EVIL),)),
            isolation=records.Isolation(problems=(EVIL,)),
        ),
        attempts=attempts(1, message=EVIL, checkpoint=task_reports.Saved(EVIL, 1.0)),
        remedies=(records.RemedyReport(EVIL, done=True, message=EVIL),),
        gpu_usage=(devices.GpuUsage(0, EVIL, 1.0, clock_event_reasons=(EVIL,)),),
        task_metrics=(task_reports.TaskMetrics(EVIL, (task_reports.Metric(EVIL, 1.0, 1.0),)),),
    )
    found = report_bounds.bounded(said)
    assert all(text.isprintable() for text in strings(found))
    assert found.attempts[0].checkpoint is None, "no job could resume from it"


@pytest.mark.parametrize("moment", [math.nan, math.inf, -1.0, 1e300])
def test_times_and_codes_that_no_task_has_are_left_out(moment: float) -> None:
    told = attempts(1, started_at=moment, ended_at=moment, exit_code=2**63, signal=-(2**40))
    (found,) = report_bounds.bounded(report(attempts=told)).attempts
    assert found == attempts(1)[0]


@pytest.mark.parametrize(
    ("held", "place"),
    [
        ({"lease_s": math.inf}, "held.lease_s"),
        ({"lease_s": math.nan}, "held.lease_s"),
        ({"lease_s": 1e9}, "held.lease_s"),
        ({"grace_s": -1}, "held.grace_s"),
        ({"devices": (0, 2**40)}, "held.devices"),
        ({"rank": records.RankPlacement(rank=-1)}, "held.rank.rank"),
        (
            {"stop": records.StopOrder(states.EndReason.CANCELLED, "TERM", 5, math.nan)},
            "held.stop.at",
        ),
    ],
)
def test_numbers_of_what_a_node_holds_that_no_controller_gives_are_refused(
    held: dict[str, Any], place: str
) -> None:
    said = report(held=(records.HeldAttempt("a", **held),))
    with pytest.raises(report_bounds.ExcessError, match=f"^{place}: found"):
        report_bounds.bounded(said)


def test_texts_for_people_are_cut() -> None:
    most = report_bounds.TEXT_CHARACTERS_MAX
    said = report(
        inventory=records.Inventory(
            notice="n" * 9999, isolation=records.Isolation(problems=("p" * 9999,))
        ),
        attempts=attempts(1, message="m" * 9999),
    )
    found = report_bounds.bounded(said)
    assert found.inventory is not None
    assert found.inventory.isolation is not None
    cut = (found.inventory.notice, *found.inventory.isolation.problems, found.attempts[0].message)
    assert [len(text) for text in cut] == [most] * 3


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (report(boot_id=LONG), "boot_id: found 513 characters"),
        (report(incarnation="a\nb"), "incarnation: found 3 characters"),
        (report(attempts=(records.AttemptReport(LONG, RUNNING),)), "attempts.id: found 513"),
        (report(attempts=attempts(report_bounds.ATTEMPTS_MAX + 1)), "attempts: found 20001 items"),
        (report(proofs={"a": LONG}), "proofs: found 513"),
        (report(proofs={str(n): "" for n in range(20_001)}), "proofs: found 20001 items"),
        (report(follows=("x",) * 5000), "follows: found 5000 items, expected at most 4096"),
        (has(labels={"a": LONG}), "inventory.labels: found 513"),
        (has(labels={LONG: "a"}), "inventory.labels: found 513"),
        (has(labels={str(n): "" for n in range(300)}), "inventory.labels: found 300 items"),
        (has(kernel=LONG), "inventory.kernel: found 513"),
        (has(host=mounts(LONG)), "inventory.host.mounts.path: found 513"),
        (has(host=mounts("m" * 500, "k" * 500, 1100)), "inventory: found 11"),
        (report(gpu_usage=(devices.GpuUsage(0, LONG, 1.0),)), "gpu_usage.uuid: found 513"),
    ],
)
def test_what_no_agent_says_is_refused_with_its_limit(
    said: agent_messages.SyncRequest, why: str
) -> None:
    with pytest.raises(report_bounds.ExcessError) as refused:
        report_bounds.bounded(said)
    assert str(refused.value).startswith(why)
    assert "expected at most" in str(refused.value)
