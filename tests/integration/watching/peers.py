"""Prometheus, Alertmanager and somebody who is told, on loopback and in folders of their own.

The programs are Debian's; a test that needs them is left out where they are not installed.
"""

import http.server
import json
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from reconciler import package_data
from reconciler.operations.local import free_ports

Json = Any
ALERTS = package_data.checkout() / "grafana" / "alerts"
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager")
#: How often Prometheus scrapes and evaluates here.
EVERY_S = 1
#: The longest that anything is waited for; the machine may be slow.
PATIENCE_S = 120.0

needs_peers = pytest.mark.skipif(
    not all(shutil.which(program) for program in PROGRAMS),
    reason="prometheus and prometheus-alertmanager are not installed",
)


def until(look: Callable[[], Json], what: str, timeout_s: float = PATIENCE_S) -> Json:
    """Wait until ``look`` returns something true; what it last saw is told where it never does."""
    ends_at = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < ends_at:
        try:
            found = look()
        except httpx.HTTPError as error:
            last, found = error, None
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}; last error: {last!r}")


class _Program:
    """A process with a folder of its own, told by its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.port = free_ports.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *command: str) -> None:
        """Start it and wait until it is ready."""
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        try:
            until(self._is_ready, command[0])
        except BaseException:
            self.stop()
            raise

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text())
        return httpx.get(f"{self.url}/-/ready").status_code == 200

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Prometheus(_Program):
    """Scrapes a controller, whose targets it finds by ``http_sd``, or what it is told to.

    ``rules`` are files of rules; ``alertmanager`` is where alerts go.
    """

    def start(self, url: str, token: Path, rules: list[Path], alertmanager: str = "") -> None:
        """Scrape the controller at ``url`` and all that it lists."""
        # the type is its default for scrapes, but not for http_sd in Debian's version
        credentials = {"type": "Bearer", "credentials_file": str(token)}
        scrape = {
            "job_name": "muster",
            "honor_labels": True,
            "authorization": credentials,
            "http_sd_configs": [
                {
                    "url": f"{url}/v1/prometheus/targets",
                    "refresh_interval": "1s",
                    "authorization": credentials,
                }
            ],
        }
        self.scrape([scrape], rules, alertmanager)

    def scrape(self, configs: list[Json], rules: list[Path], alertmanager: str = "") -> None:
        """Scrape by these entries of ``scrape_configs``."""
        document: dict[str, Json] = {
            "global": {"scrape_interval": f"{EVERY_S}s", "evaluation_interval": f"{EVERY_S}s"},
            "rule_files": [str(rule) for rule in rules],
            "scrape_configs": configs,
        }
        if alertmanager:
            target = alertmanager.removeprefix("http://")
            document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
        configuration = self.folder / "prometheus.yml"
        configuration.write_text(yaml.safe_dump(document))
        self.run(
            "prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        )

    def alerting(self) -> set[str]:
        """The kinds of drift of which an alert is there, firing or about to."""
        found = httpx.get(f"{self.url}/api/v1/alerts", timeout=60).json()
        assert found["status"] == "success", found
        return {alert["labels"].get("kind", "") for alert in found["data"]["alerts"]}

    def exemplars(self, series: str) -> list[Json]:
        """The exemplars of the last ten minutes of a series, as it keeps them."""
        now = time.time()
        parameters: dict[str, str | float] = {"query": series, "start": now - 600, "end": now}
        answer = httpx.get(f"{self.url}/api/v1/query_exemplars", params=parameters, timeout=60)
        found = answer.json()
        assert found["status"] == "success", (series, found)
        return [one for each in found["data"] for one in each["exemplars"]]

    def query(self, expression: str, at: float | None = None) -> list[Json]:
        """The samples of an instant query; an error of the query is an error."""
        parameters: dict[str, str | float] = {"query": expression}
        if at is not None:
            parameters["time"] = at
        answer = httpx.get(f"{self.url}/api/v1/query", params=parameters, timeout=60).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[Json] = answer["data"]["result"]
        return found

    def targets(self) -> dict[str, str]:
        """Path of each target to its health."""
        answer = httpx.get(f"{self.url}/api/v1/targets", timeout=60).json()
        return {
            one["discoveredLabels"]["__metrics_path__"]: one["health"]
            for one in answer["data"]["activeTargets"]
        }


class Alertmanager(_Program):
    """Tells a webhook of alerts at once, and of their end."""

    def start(self, webhook: str, inhibit_rules: Sequence[Json] = ()) -> None:
        """Start it; ``inhibit_rules`` say what keeps quiet beside what."""
        document = {
            "inhibit_rules": list(inhibit_rules),
            "route": {
                "receiver": "hook",
                "group_by": ["alertname", "kind"],
                "group_wait": "0s",
                "group_interval": "1s",
            },
            "receivers": [
                {"name": "hook", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
            ],
        }
        configuration = self.folder / "alertmanager.yml"
        configuration.write_text(yaml.safe_dump(document))
        self.run(
            "prometheus-alertmanager",
            f"--config.file={configuration}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        )

    def post(self, *alerts: dict[str, str]) -> None:
        """Fire alerts with these labels, as Prometheus would."""
        body = [{"labels": labels} for labels in alerts]
        httpx.post(f"{self.url}/api/v2/alerts", json=body, timeout=60).raise_for_status()

    def alerts(self) -> list[Json]:
        """All that fire, each with its labels and what keeps it quiet."""
        answer = httpx.get(f"{self.url}/api/v2/alerts", timeout=60)
        answer.raise_for_status()
        found: list[Json] = answer.json()
        return found


class Webhook:
    """Somebody who is told: keeps what arrives and when."""

    def __init__(self) -> None:
        heard = self._heard = []  # type: list[tuple[float, Json]]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                heard.append((time.time(), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def told(self, status: str, alertname: str, since: float, **labels: str) -> tuple[float, Json]:
        """The first alert of that status, name and labels since then: when it came, and it."""
        for at, message in list(self._heard):
            for alert in message["alerts"]:
                wanted = {"alertname": alertname, **labels}
                if (
                    at >= since
                    and alert["status"] == status
                    and wanted.items() <= alert["labels"].items()
                ):
                    return at, alert
        return 0.0, None

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


#: Alerts about the disk of the machine that runs the tests, which other tests fill meanwhile.
OF_THE_HOST = frozenset({"MusterStateDiskFilling"})


def hurried(folder: Path, for_s: int) -> list[Path]:
    """The project's rules with every ``for`` made ``for_s``; promtool tests the real ones.

    Those about the disk of this machine are left out.
    """
    written = []
    for path in sorted(ALERTS.glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        for group in document["groups"]:
            group["rules"] = [r for r in group["rules"] if r.get("alert") not in OF_THE_HOST]
            for rule in group["rules"]:
                rule["for"] = f"{for_s}s"
        written.append(folder / path.name)
        written[-1].write_text(yaml.safe_dump(document))
    return written
