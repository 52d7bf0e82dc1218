"""The table of what each phase reads and writes is what the code does."""

from collections.abc import Callable
from typing import Any

import pytest

from reconciler.core import cycle_context, job_draft, reconcile
from tests.unit.core import phase_access, test_storm


def split(text: str) -> set[str]:
    assert text.split() == sorted(set(text.split()))
    return set(text.split())


def test_every_phase_has_a_row() -> None:
    assert reconcile.PHASES.keys() == phase_access.phases()


@pytest.mark.parametrize("phase", reconcile.PHASES)
def test_a_row_is_what_the_code_says(phase: str) -> None:
    reads, writes = phase_access.of_phase(phase)
    row = reconcile.PHASES[phase]
    observed = {name for name in reads if name.startswith("observed.")}
    assert {f"observed.{name}" for name in split(row.observed)} == observed
    assert (split(row.reads), split(row.writes)) == (reads - observed, writes)


def test_a_change_in_the_code_is_seen() -> None:
    """The derivation follows calls: what helpers of a phase change is found too."""
    writes = {phase: phase_access.of_phase(phase)[1] for phase in reconcile.PHASES}
    assert writes["schedule_reuse.valid_inputs"] == set()
    assert {phase for phase in writes if "remedies" in writes[phase]} == {
        "clock_steps.forget_the_future",
        "lifecycle.progress",
        "remediation.apply",
    }
    assert {phase for phase in writes if "answers" in writes[phase]} == {"overrides.apply"}


def _draft(draft: job_draft.JobDraft) -> tuple[object, ...]:
    values = {name: getattr(draft, name) for name in draft.__slots__}
    return (*values.values(), bytes(draft.elements))


def _fields(context: cycle_context.CycleContext) -> dict[str, object]:
    """Return what the fields of a context hold now, so that a change shows."""
    jobs, work, alarm = context.jobs, context.work, context.alarm
    return {
        "absent": set(context.absent),
        "actions": len(context.actions),
        "alarm": (alarm.wake_at, alarm.schedule_at),
        "answers": dict(context.answers),
        "attempts": dict(context.attempts.renewed),
        "events": len(context.events.all),
        "forget_at": context.forget_at,
        "jobs": (
            {name: _draft(draft) for name, draft in jobs.drafts.items()},
            dict(jobs.new_reason_keys),
            set(jobs.cancelled_runs),
            (len(jobs.new_runs), len(jobs.replaced), len(jobs.finished_now), jobs.next_order),
        ),
        "left_jobs": list(context.left_jobs),
        "nodes": (dict(context.nodes.renewed), list(context.nodes.left)),
        "override_drains": dict(context.override_drains),
        "overrides": context.overrides,
        "reasons": dict(context.reasons.renewed),
        "remedies": list(context.remedies),
        "work": (len(work.ended), dict(work.short_since)),
    }


@pytest.mark.parametrize("seed", range(400, 404))
def test_no_phase_changes_more_than_its_row_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: dict[str, set[str]] = {}

    def watched(phase: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def watching(context: cycle_context.CycleContext, *rest: Any, **named: Any) -> Any:
            before = _fields(context)
            result = run(context, *rest, **named)
            after = _fields(context)
            differ = {name for name in after if after[name] != before[name]}
            changed.setdefault(phase, set()).update(differ)
            return result

        return watching

    for phase in reconcile.PHASES:
        name, _, function = phase.partition(".")
        module = getattr(reconcile, name)
        monkeypatch.setattr(module, function, watched(phase, getattr(module, function)))
    test_storm._tell(seed)
    for phase, fields in changed.items():
        assert fields <= split(reconcile.PHASES[phase].writes), phase
    assert sum(map(len, changed.values())) > 20
