"""Dashboards: what is committed is what is built, and every panel can be read and understood."""

import importlib.metadata
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import dashboard as models

from grafana import build
from reconciler import metrics, package_data

Json = Any
ROOT = package_data.checkout() / "grafana"
BUILT = build.documents()
TITLES = {
    "Overview", "GitOps and drift", "Queues and fairness", "Why is work waiting", "Jobs",
    "Nodes and GPUs", "Control plane", "Usage and cost",
}  # fmt: skip
#: What Grafana itself fills in.
BUILT_IN = {"__rate_interval", "__range", "__interval", "__data"}
EACH = pytest.mark.parametrize("name", BUILT)


def panels_of(document: Json) -> Iterator[Json]:
    """Every panel but rows."""
    for panel in document["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions(document: Json) -> Iterator[str]:
    """Everything that is asked of Prometheus."""
    for panel in panels_of(document):
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["expr"] for one in document["annotations"]["list"])


def test_what_is_committed_is_what_is_built() -> None:
    """`python -m grafana.build` writes it anew."""
    committed = {path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}
    assert committed == BUILT
    found = {json.loads(text)["title"] for text in BUILT.values()}
    assert found == TITLES


def test_the_page_of_panels_is_what_is_built() -> None:
    page = build.PAGE.read_text()
    assert page == build.reference()
    for text in BUILT.values():
        document = json.loads(text)
        section = page.split(f"## {document['title']}\n")[1].split("\n## ")[0]
        for panel in panels_of(document):
            (row,) = [
                one for one in section.splitlines() if one.startswith(f"| {panel['title']} |")
            ]
            assert len(re.findall(r"(?<!\\)\|", row)) == 4, row


@EACH
def test_a_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    for panel in panels_of(json.loads(BUILT[name])):
        title = panel["title"]
        assert len(panel["description"]) >= 10, title
        assert panel["description"].endswith((".", "?", ":")), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["targets"], title
        assert panel["datasource"]["uid"] == "${datasource}", title
    titles = [panel["title"] for panel in panels_of(json.loads(BUILT[name]))]
    assert len(titles) == len(set(titles))


@EACH
def test_a_panel_says_what_its_colours_mean(name: str) -> None:
    """But for those at which there is any at all of what should not be."""
    for panel in panels_of(json.loads(BUILT[name])):
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        for step in steps:
            if step["value"] not in {None, 0, 1} and step["color"] != "green":
                assert step["color"] in panel["description"].lower(), panel["title"]


def test_a_colour_of_the_overview_is_defended() -> None:
    """Who is woken by it may ask why here, and not earlier or later."""
    for panel in panels_of(json.loads(BUILT["overview.json"])):
        if panel["type"] != "stat":
            continue
        options = panel["fieldConfig"]["defaults"]
        mapped = [each for one in options.get("mappings", []) for each in one["options"].values()]
        colors = {one["color"] for one in (*options["thresholds"]["steps"], *mapped)}
        words = panel["description"].lower()
        assert len(words.split(". ")) >= 2, panel["title"]
        assert all(one in words for one in colors & {"orange", "red"}), panel["title"]
        assert options["noValue"] == "none", panel["title"]


#: What a node's page on the controller has, and one at a port of its own has not.
JUDGED = {"muster_node_state"}


def test_nothing_goes_by_what_a_node_at_its_own_port_does_not_tell() -> None:
    """Dashboards and alerts are the same wherever nodes are read."""
    texts = [*BUILT.values(), *(path.read_text() for path in (ROOT / "alerts").glob("*.yaml"))]
    used = {one for text in texts for one in re.findall(r"\bmuster_[a-z0-9_]+", text)}
    assert not JUDGED & used
    assert metrics.TABLE.keys() >= JUDGED


@EACH
def test_panels_lie_beside_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(BUILT[name])["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


@EACH
def test_expressions_go_by_series_of_the_table_and_variables_that_are_there(name: str) -> None:
    document = json.loads(BUILT[name])
    variables = {one["name"] for one in document["templating"]["list"]}
    for expr in expressions(document):
        for series in re.findall(r"\bmuster_[a-z0-9_]+", expr):
            assert re.sub(r"_(bucket|sum|count)$", "", series) in metrics.TABLE, (expr, series)
        used = set(re.findall(r"\$\{?(\w+)", expr))
        assert used <= variables | BUILT_IN, expr
    for panel in panels_of(document):
        for link in panel["fieldConfig"]["defaults"].get("links", []):
            if link["url"] == "/alerting/list":
                continue  # Grafana's own page of rules and what fires
            uid = re.match(r"/d/muster-([a-z-]+)", link["url"])
            assert uid is not None, link
            assert f"{uid[1]}.json" in BUILT, link


@EACH
def test_a_dashboard_leads_to_the_others_and_shows_commits_and_evictions(name: str) -> None:
    document = json.loads(BUILT[name])
    assert document["uid"] == f"muster-{name.removesuffix('.json')}"
    assert document["tags"] == ["muster"]
    marks = document["annotations"]["list"]
    assert [one["name"] for one in marks[:2]] == ["Commits", "Evictions"]
    for mark in marks:
        # Grafana says of a moment what its title says, and nothing without one
        said = set(re.findall(r"{{(\w+)}}", mark["titleFormat"]))
        (kept,) = re.findall(r"^[^(]*\bby \(([\w, ]+)\)", mark["expr"])
        assert said, mark["name"]
        assert said <= set(kept.split(", ")), mark["name"]
        assert mark["useValueForTime"] is mark["expr"].startswith("1000 * "), (
            "it is in milliseconds"
        )
    assert any(one["tags"] == ["muster"] and one["asDropdown"] for one in document["links"])


#: Fields of annotations that are the Prometheus data source's own, as its documentation has them.
PROMETHEUS_OWN = re.compile(r"\.annotations\.list\[\d+\]\.(titleFormat|useValueForTime)")


def dropped(written: Json, read: Json, path: str = "") -> Iterator[str]:
    """Where something was written that did not come back."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            if key not in read:
                if value is not None:
                    yield f"{path}.{key}"
            else:
                yield from dropped(value, read[key], f"{path}.{key}")
    elif isinstance(written, list) and isinstance(read, list):
        if len(written) != len(read):
            yield path
        for position, (one, other) in enumerate(zip(written, read, strict=False)):
            yield from dropped(one, other, f"{path}[{position}]")
    elif written != read:
        yield path


@EACH
def test_every_field_is_one_that_grafana_knows(name: str) -> None:
    """The types of Grafana's own schema read all of it: a field that they lack would be dropped."""
    document = json.loads(BUILT[name])
    read = models.Dashboard.from_json(json.loads(BUILT[name]))
    again = json.loads(json.dumps(read, cls=encoder.JSONEncoder))
    lacking = [path for path in dropped(document, again) if not PROMETHEUS_OWN.fullmatch(path)]
    assert lacking == []
    assert document["schemaVersion"] >= 36
    ids = [panel["id"] for panel in document["panels"] if panel.get("id") is not None]
    assert len(ids) == len(set(ids))


def test_the_types_are_those_of_the_grafana_that_is_run() -> None:
    """Others write fields that this one knows otherwise, such as the tooltips of heatmaps."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    run = compose["services"]["grafana"]["image"].rpartition(":")[2]
    written = importlib.metadata.version("grafana-foundation-sdk").rpartition("!")[2]
    assert written.split(".")[:2] == run.split(".")[:2]


@EACH
def test_a_panel_has_the_options_of_its_type(name: str) -> None:
    for panel in panels_of(json.loads(BUILT[name])):
        assert panel["options"], panel["title"]
        if panel["type"] == "heatmap":
            # a point leads to its job by the tooltip
            assert panel["options"]["tooltip"]["mode"] == "single", panel["title"]
        if panel["type"] == "stat" and panel["options"]["textMode"] == "name":
            assert panel["targets"][0]["legendFormat"].startswith("{{"), panel["title"]
    (version,) = [
        panel for panel in panels_of(json.loads(BUILT["control-plane.json"]))
        if panel["title"] == "Version"
    ]  # fmt: skip
    assert version["options"]["textMode"] == "name", "its number is 1"


@EACH
def test_rows_of_tables_come_together_and_show_what_they_have(name: str) -> None:
    """Grafana merges rows whose labels all agree, and the name of a series is one of them."""
    for panel in panels_of(json.loads(BUILT[name])):
        if panel["type"] != "table":
            continue
        merge, organize = panel["transformations"]
        assert merge["id"] == "merge"
        by = {
            re.sub(r"\s", "", labels)
            for target in panel["targets"]
            for labels in re.findall(r"\bby \(([\w, ]+)\)", target["expr"])[:1] or [""]
        }
        assert len(by) == 1, panel["title"]
        assert len(panel["targets"]) == 1 or by != {""}, panel["title"]
        renamed = organize["options"]["renameByName"]
        shown = set(renamed.values()) | set().union(*(labels.split(",") for labels in by))
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in shown, panel["title"]
        # fields are left out by the names that they have before they are renamed
        left_out = set(organize["options"]["excludeByName"])
        assert not left_out & set(renamed.values()), panel["title"]
        for link in panel["fieldConfig"]["defaults"].get("links", []):
            assert set(re.findall(r"__data\.fields\.(\w+)", link["url"])) <= shown, panel["title"]


#: What Grafana's documentation of provisioning names, of the parts that are used.
SOURCE_FIELDS = {"name", "uid", "type", "access", "url", "isDefault", "jsonData"}
PROVIDER_FIELDS = {
    "name", "folder", "folderUid", "type", "allowUiUpdates", "options", "updateIntervalSeconds",
    "disableDeletion", "orgId",
}  # fmt: skip


def test_what_is_provisioned_is_in_grafanas_form() -> None:
    sources = yaml.safe_load((ROOT / "provisioning/datasources/prometheus.yaml").read_text())
    assert sources["apiVersion"] == 1
    (source,) = sources["datasources"]
    assert set(source) <= SOURCE_FIELDS
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    (leads,) = source["jsonData"]["exemplarTraceIdDestinations"]
    # one dollar sign begins a variable of Grafana's environment, two are one
    assert leads["url"] == "/d/muster-jobs?var-job_name=$${__value.raw}"
    assert "jobs.json" in BUILT
    providers = yaml.safe_load((ROOT / "provisioning/dashboards/muster.yaml").read_text())
    assert providers["apiVersion"] == 1
    (provider,) = providers["providers"]
    assert set(provider) <= PROVIDER_FIELDS
    assert provider["type"] == "file"
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    mounted = dict(one.split(":")[:2] for one in compose["services"]["grafana"]["volumes"])
    assert mounted["./dashboards"] == provider["options"]["path"]
    assert mounted["./provisioning"] == "/etc/grafana/provisioning"


#: What the Compose Specification names, of the parts that are used.
SERVICE_FIELDS = {"image", "network_mode", "command", "environment", "volumes", "restart"}


def test_all_that_is_provisioned_is_there_and_pinned() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert set(compose) == {"name", "services", "volumes"}
    for service in compose["services"].values():
        assert set(service) <= SERVICE_FIELDS
        named = {one.split(":")[0] for one in service["volumes"] if one[0] not in "./$"}
        assert named <= set(compose["volumes"])
    for name, service in compose["services"].items():
        assert re.search(r":v?[0-9]+\.[0-9]+\.[0-9]+$", service["image"]), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), volume
    told = " ".join(str(service) for service in compose["services"].values())
    assert "0.0.0.0" not in told


def test_all_that_is_provisioned_listens_on_loopback() -> None:
    """What isn't told where to listen listens everywhere."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert not any("ports" in service for service in services.values())
    for name, option in (("prometheus", "web"), ("alertmanager", "web")):
        (address,) = [
            one for one in services[name]["command"] if one.startswith(f"--{option}.listen-address")
        ]
        assert address.split("=")[1].startswith("127.0.0.1:"), name
    assert "--cluster.listen-address=" in services["alertmanager"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    text = (ROOT / "prometheus.yml").read_text()
    (tmp_path / "token").write_text("x")
    text = text.replace("/etc/prometheus/muster-token", str(tmp_path / "token"))
    text = text.replace("/etc/prometheus/alerts", str(ROOT / "alerts"))
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rules found") == len(list((ROOT / "alerts").glob("*.yaml")))


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
def test_amtool_takes_the_configuration() -> None:
    done = subprocess.run(
        ["amtool", "check-config", str(ROOT / "alertmanager.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
