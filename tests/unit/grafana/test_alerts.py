"""Alerts: their rules are right, each has its three tests and its runbook, and all are told of."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler import metrics, package_data
from reconciler.model.policy import drift_kinds
from reconciler.model.values import quantities

ROOT = package_data.checkout()
ALERTS = ROOT / "grafana" / "alerts"
FILES = sorted(ALERTS.glob("*.yaml"))
RECORDED = sorted((ROOT / "grafana" / "rules").glob("*.yaml"))
#: What Prometheus itself says of its targets.
PROMETHEUS = {"up"}
Rule = dict[str, Any]


def rules_of(path: Path) -> list[Rule]:
    document = yaml.safe_load(path.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


RULES = [(path, rule) for path in FILES for rule in rules_of(path)]
EACH = pytest.mark.parametrize(("path", "rule"), RULES, ids=[rule["alert"] for _, rule in RULES])


def seconds(text: str) -> float:
    """A moment as promtool writes it."""
    return quantities.parse_duration(text)


@EACH
def test_a_rule_says_how_long_how_bad_and_what_to_do(path: Path, rule: Rule) -> None:
    assert re.fullmatch(r"Muster[A-Z][A-Za-z]+", rule["alert"])
    assert seconds(rule["for"]) >= 60
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert len(rule["annotations"]["summary"]) <= 100
    page, _, heading = rule["annotations"]["runbook_url"].partition("#")
    text = (ROOT / page).read_text()
    found = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert heading in {name.lower() for name in found}
    section = text.split(f"## {rule['alert']}\n")[1].split("\n## ")[0]
    assert "**Look.**" in section
    assert "**Do.**" in section


@EACH
def test_a_rule_goes_by_series_of_the_table_alone(path: Path, rule: Rule) -> None:
    names = set(re.findall(r"\b(muster_[a-z0-9_]+|up)\b", rule["expr"]))
    assert names
    known = metrics.TABLE.keys() | PROMETHEUS
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    assert plain <= known, plain - known


@EACH
def test_a_rule_is_tested_before_in_and_after_its_time(path: Path, rule: Rule) -> None:
    """Not before ``for`` is over, then exactly once, and no more when it has passed."""
    document = yaml.safe_load((ALERTS / "tests" / path.name).read_text())
    assert document["rule_files"] == [f"../{path.name}"]
    (group,) = [one for one in document["tests"] if one["name"] == rule["alert"]]
    early, fires, over = group["alert_rule_test"]
    assert {one["alertname"] for one in (early, fires, over)} == {rule["alert"]}
    assert early["exp_alerts"] == over["exp_alerts"] == []
    (expected,) = fires["exp_alerts"]
    assert expected["exp_labels"]["severity"] == rule["labels"]["severity"]
    assert "{{" not in str(expected)
    moments = [seconds(one["eval_time"]) for one in (early, fires, over)]
    assert moments[0] < moments[1] < moments[2]
    assert moments[1] - moments[0] <= seconds(group["interval"])
    assert moments[1] >= seconds(rule["for"])


def test_every_runbook_is_of_an_alert() -> None:
    books = {path.stem: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert set(books) == {path.stem for path in FILES}
    told = {
        name
        for text in books.values()
        for name in re.findall(r"^## (Muster\w+)$", text, re.MULTILINE)
    }
    assert told == {rule["alert"] for _, rule in RULES}


def _told() -> dict[str, str]:
    """What people read: pages of the documentation, dashboards, alerts."""
    paths = [ROOT / "README.md"]
    paths += [
        path
        for kind in ("concepts", "guides", "operations", "runbooks")
        for path in (ROOT / "docs" / kind).rglob("*.md")
    ]
    paths += [*FILES, ALERTS.parent / "alertmanager.yml"]
    paths += (ALERTS.parent / "dashboards").glob("*.json")
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def test_all_alerts_and_series_that_are_named_anywhere_are_there() -> None:
    alerts = {rule["alert"] for _, rule in RULES}
    for name, text in _told().items():
        named = set(re.findall(r"\bMuster[A-Z]\w+\b", text))
        assert named <= alerts, (name, named - alerts)
        series = set(re.findall(r"\bmuster_[a-z0-9_]*[a-z0-9]\b(?![/*_.-])", text))
        plain = {re.sub(r"_(bucket|sum|count)$", "", one) for one in series}
        assert plain <= metrics.TABLE.keys(), (name, plain - metrics.TABLE.keys())


def test_all_dashboards_that_runbooks_send_to_are_there() -> None:
    boards = (ALERTS.parent / "dashboards").glob("*.json")
    titles = {json.loads(path.read_text())["title"] for path in boards}
    for path in (ROOT / "docs" / "runbooks").glob("*.md"):
        text = " ".join(path.read_text().split())
        for title in re.findall(r"dashboard \*([^*]+)\*|\*([^*]+)\* dashboard", text):
            assert title[0] or title[1] in titles, (path.name, title)


def test_alerts_that_silence_others_are_there() -> None:
    document = yaml.safe_load((ALERTS.parent / "alertmanager.yml").read_text())
    known = {rule["alert"] for _, rule in RULES}
    for rule in document["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            parts = re.fullmatch(r'alertname(=~|!=|=)"(.+)"', matcher)
            assert parts is not None, matcher
            how, named = parts.groups()
            found = {name for name in known if re.fullmatch(named, name)}
            assert len(found) >= len(named.split("|")), matcher
            assert how in ("=", "!=") or len(found) > 1, matcher


def test_drift_of_every_kind_has_an_alert_of_its_class() -> None:
    """Exactly one, as bad as the kind is at most; the one for the others knows none of them."""
    drifting = re.compile(r'muster_drift{kind=~?"([^"]+)"}')
    told = {
        rule["alert"]: (found[1], rule["labels"]["severity"])
        for _, rule in RULES
        if (found := drifting.search(rule["expr"]))
    }
    (left,) = re.findall(r'kind!~"([^"]+)"', (ALERTS / "drift.yaml").read_text())
    for kind, meant in drift_kinds.KINDS.items():
        alerts = [name for name, (kinds, _) in told.items() if re.fullmatch(kinds, kind)]
        assert len(alerts) == 1, (kind, alerts)
        assert told[alerts[0]][1] == meant.severity, kind
        assert re.fullmatch(left, kind), kind
    classes = {kinds for kinds, _ in told.values()}
    assert all(any(re.fullmatch(one, kind) for kind in drift_kinds.KINDS) for one in classes)


def test_what_is_recorded_goes_by_series_that_are_there_and_is_tested() -> None:
    """Under the very names that the table of series says they have with dcgm-exporter."""
    for path in RECORDED:
        tested = yaml.safe_load((path.parent / "tests" / path.name).read_text())["tests"]
        rules = rules_of(path)
        assert [one["name"] for one in tested] == [rule["record"] for rule in rules]
        for rule in rules:
            names = set(re.findall(r"\bmuster_[a-z0-9_]+", rule["expr"]))
            assert names <= metrics.TABLE.keys(), rule["record"]
            (told,) = names - {"muster_gpu_info"}
            kind = rule["record"].removeprefix("DCGM_FI_DEV")
            same = {"_ECC_DBE_VOL_TOTAL": "_DBE_VOL_TOTAL"}.get(kind, kind)
            same = {"_UNCORRECTABLE_REMAPPED_ROWS": "_UNCORRECTABLE_"}.get(kind, same)
            assert same in metrics.TABLE[told].help, rule["record"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", *map(str, FILES)],
        ["test", "rules", *map(str, sorted((ALERTS / "tests").glob("*.yaml")))],
        ["check", "rules", *map(str, RECORDED)],
        ["test", "rules", *map(str, sorted((ALERTS.parent / "rules" / "tests").glob("*.yaml")))],
    ],
    ids=["check", "test", "check-recorded", "test-recorded"],
)
def test_promtool_agrees(arguments: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
