"""What tries use is shown as sampled while they run, and as nodes say once they have ended."""

import msgspec

from reconciler.model.observed import task_usage
from reconciler.model.state.states import AttemptState
from reconciler.operations.views import attempt_views, view_types
from tests.unit.store import samples

SAMPLED = task_usage.TaskUse(
    "x", 91.0, 3, 7.5, 1000, 2000, 30, None, (task_usage.GpuUse(1, 2, 500),)
)


def test_a_try_that_runs_shows_what_was_sampled() -> None:
    runs = samples.attempt(samples.job("j"), state=AttemptState.RUNNING)
    assert attempt_views.attempt_view(runs, array=False).use is None
    assert attempt_views.attempt_view(runs, array=False, use=SAMPLED).use == view_types.UseView(
        at="1970-01-01T00:01:31.000Z",
        processes=3,
        cpu_s=7.5,
        memory=1000,
        memory_max=2000,
        read=30,
        written=None,
        gpus=[view_types.GpuUseView(1, 2, 500)],
    )


def test_a_try_that_has_ended_shows_what_it_used_in_all() -> None:
    runs = samples.attempt(samples.job("j"), state=AttemptState.RUNNING)
    ended = msgspec.structs.replace(
        runs, state=AttemptState.ENDED, started_at=1.0, cpu_s=9.0, max_memory_bytes=4000,
        read_bytes=5, written_bytes=6, measured_gpu_s=20.0, busy_gpu_s=15.0,
    )  # fmt: skip
    shown = attempt_views.attempt_view(ended, array=False, use=SAMPLED).use
    assert shown == view_types.UseView(None, None, 9.0, None, 4000, 5, 6, [], 20.0, 15.0)
    never = msgspec.structs.replace(ended, started_at=None)
    assert attempt_views.attempt_view(never, array=False, use=SAMPLED).use is None
