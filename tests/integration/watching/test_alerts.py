"""Something drifts in a live cluster: Prometheus sees it, Alertmanager tells, and tells its end.

The rules are the project's own but for their ``for``, which is made short; with promtool the
real ones are tested. Every kind of drift is caused.
"""

import time
from collections.abc import Iterator

import pytest

from reconciler.model.policy import drift_kinds
from tests.integration.watching import causes, peers
from tests.nvml import standin

pytestmark = [pytest.mark.slow, peers.needs_peers]

FOR_S = 2


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[causes.Scene]:
    if standin.COMPILER is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("watched")
    (folder / "site").mkdir()
    made = causes.Scene(folder)
    try:
        made.start(FOR_S)
        yield made
    finally:
        made.stop()


def test_every_kind_of_drift_is_caused() -> None:
    assert set(causes.CAUSES) == set(drift_kinds.KINDS)


@pytest.mark.parametrize("kind", causes.CAUSES)
def test_drift_is_told_and_its_end_is_told(
    scene: causes.Scene, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alert, cause = causes.CAUSES[kind]
    if kind not in causes.EARLY:
        # What an earlier cause brought besides may be over, and its alert not yet: nobody would
        # be told a second time.
        peers.until(lambda: kind not in scene.prometheus.alerting(), f"the end of all {kind}")
    began = 0.0 if kind in causes.EARLY else time.time()

    def told(status: str, since: float) -> tuple[float, peers.Json] | None:
        at, found = scene.webhook.told(status, alert, since, kind=kind)
        return (at, found) if found else None

    def listed() -> list[peers.Json]:
        return [d for d in scene.bed.get("/v1/drift")["items"] if d["kind"] == kind]

    with cause(scene):
        scene.bed.until(listed, timeout_s=400 if kind in causes.EARLY else 150)
        seen_at = time.time()
        fired_at, found = peers.until(lambda: told("firing", began), f"{alert} at the webhook")
        assert found["annotations"]["runbook_url"].endswith(f"#{alert.lower()}")
    scene.bed.until(lambda: not listed(), timeout_s=150)
    healed_at = time.time()
    over_at, _ = peers.until(lambda: told("resolved", fired_at), f"the end of {alert}")

    # the next cause finds a cluster that is well
    def well() -> bool:
        left = {one["kind"] for one in scene.bed.get("/v1/drift")["items"]}
        return left <= causes.EARLY

    scene.bed.until(well, timeout_s=150)
    with capsys.disabled():
        print(
            f"\n  {kind:<26} {alert:<28} told {fired_at - seen_at:5.1f} s after it was seen "
            f"(for {FOR_S} s, a scrape each {peers.EVERY_S} s), "
            f"its end {over_at - healed_at:5.1f} s after",
            end="",
        )
