"""Which alert keeps quiet beside which, by the project's own rules in a real Alertmanager."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.watching import peers

pytestmark = [pytest.mark.slow, peers.needs_peers]

RULES = yaml.safe_load((peers.ALERTS.parent / "alertmanager.yml").read_text())["inhibit_rules"]
#: What says most, and what is quiet beside it in the same pool.
SAYS_MOST = {"MusterNodesLost": "MusterNodeSilent", "MusterGpuFailed": "MusterGpuUnusable"}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[peers.Alertmanager]:
    webhook, made = peers.Webhook(), peers.Alertmanager(tmp_path / "alertmanager")
    try:
        made.start(webhook.url, RULES)
        yield made
    finally:
        made.stop()
        webhook.close()


def _quiet(manager: peers.Alertmanager) -> set[tuple[str, str]]:
    return {
        (one["labels"]["alertname"], one["labels"].get("pool", ""))
        for one in manager.alerts()
        if one["status"]["inhibitedBy"]
    }


@pytest.mark.parametrize(("loud", "quiet"), SAYS_MOST.items())
def test_an_alert_of_a_pool_is_quiet_beside_the_one_of_that_pool_alone(
    manager: peers.Alertmanager, loud: str, quiet: str
) -> None:
    of_one = {"alertname": quiet, "pool": "one"}
    of_other = {"alertname": quiet, "pool": "other"}
    manager.post({"alertname": loud, "pool": "one"}, of_one, of_other)
    peers.until(lambda: _quiet(manager) == {(quiet, "one")}, "one that is quiet")
    told = {(one["labels"]["alertname"], one["labels"]["pool"]) for one in manager.alerts()}
    assert told == {(loud, "one"), (quiet, "one"), (quiet, "other")}


def test_without_a_controller_nothing_else_is_told(manager: peers.Alertmanager) -> None:
    others = {("MusterNodeSilent", "one"), ("MusterQueueStarving", "")}
    manager.post(
        {"alertname": "MusterNoLeader"},
        {"alertname": "MusterNodeSilent", "pool": "one"},
        {"alertname": "MusterQueueStarving", "queue": "research"},
    )
    peers.until(lambda: _quiet(manager) == others, "all but one that are quiet")
