"""The scripts that put a plan up: real ``gh``, ``curl`` and ``jq`` against stand-in forges.

The stand-ins hand out comments by pages, as the forges do, and refuse what those refuse.
"""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler import package_data
from tests.unit.desired.repositories import ENVIRONMENT, git

FOLDER = package_data.checkout() / "cluster-state"
MARKER = "<!-- muster-plan:main -->\n"
CHARACTERS_MAX = 65_536
GITHUB, GITLAB = "github", "gitlab"

pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("gh", "curl", "jq")), reason="needs gh, curl and jq"
)


class Forge:
    """Comments of one proposal, and who asks with which token."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.listing = 200
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def say(self, body: str, who: str = "somebody", number: int = 8) -> None:
        """Somebody comments."""
        self.comments.append(
            {
                "id": 1000 + len(self.comments),
                "body": body,
                "user": {"login": who},
                "author": {"id": number},
            }
        )

    def plans(self) -> list[str]:
        """The comments that begin with the marker."""
        return [one["body"] for one in self.comments if one["body"].startswith(MARKER)]


def _handler(forge: Forge) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, value: object, **headers: str) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _body(self) -> str:
            data = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.headers["Content-Type"].startswith("application/json"):
                return str(json.loads(data)["body"])
            return urllib.parse.parse_qs(data, strict_parsing=True)["body"][0]

        def _take(self) -> None:
            at = urllib.parse.urlsplit(self.path)  # a proxy is asked with the whole address
            query = urllib.parse.parse_qs(at.query)
            forge.asked.append(f"{self.command} {at.path}")
            if "t0ken" not in (self.headers["Authorization"] or self.headers["PRIVATE-TOKEN"]):
                return self._answer(401, {})
            if at.path == "/api/v4/user":
                return self._answer(200, {"id": 7})
            found = re.fullmatch(
                r"/repos/o/r/issues/(?:5/comments|comments/(\d+))"
                r"|/api/v4/projects/3/merge_requests/5/notes(?:/(\d+))?",
                at.path,
            )
            if found is None:
                return self._answer(404, {})
            if self.command == "GET":
                return self._page(at, query)
            body = self._body()
            if len(body) > CHARACTERS_MAX:
                return self._answer(422, {"message": "body is too long"})
            known = found[1] or found[2]
            if known is None:
                forge.say(body, "github-actions[bot]", 7)
                return self._answer(201, forge.comments[-1])
            (one,) = [one for one in forge.comments if str(one["id"]) == known]
            one["body"] = body
            return self._answer(200, one)

        def _page(self, at: urllib.parse.SplitResult, query: dict[str, list[str]]) -> None:
            size = min(100, int(query.get("per_page", ["20"])[0]))
            page = int(query.get("page", ["1"])[0])
            items = forge.comments if "api/v4" not in at.path else forge.comments[::-1]
            if query.get("sort") == ["asc"]:
                items = items[::-1]
            more = page * size < len(items)
            following = str(page + 1) if more else ""
            there = f"http://api.github.localhost{at.path}?per_page={size}&page={following}"
            link = f'<{there}>; rel="next"'
            if forge.listing != 200:
                return self._answer(forge.listing, {"message": "no"})
            return self._answer(
                200,
                items[(page - 1) * size : page * size],
                X_Next_Page=following,
                **({"Link": link} if more else {}),
            )

        do_GET = do_POST = do_PUT = do_PATCH = _take  # noqa: N815 - named by the library

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Nothing."""

    return Handler


@pytest.fixture
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


def post(kind: str, forge: Forge, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a forge where ``plan.md`` stands."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    if kind == GITHUB:
        environment |= {
            "GH_TOKEN": "t0ken", "GH_HOST": "github.localhost", "http_proxy": forge.url,
            "REPOSITORY": "o/r", "NUMBER": "5",
        }  # fmt: skip
    else:
        environment |= {
            "MUSTER_GITLAB_TOKEN": "t0ken", "CI_API_V4_URL": f"{forge.url}/api/v4",
            "CI_PROJECT_ID": "3", "CI_MERGE_REQUEST_IID": "5",
        }  # fmt: skip
    return subprocess.run(
        [str(FOLDER / f"ci/comment-{kind}.sh")],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [GITHUB, GITLAB])
def test_one_comment_is_put_up_and_then_edited_however_many_others_there_are(
    forge: Forge, tmp_path: Path, kind: str
) -> None:
    for number in range(130):
        forge.say(f"comment {number}")
    forge.say(f"{MARKER}a trap", "mallory")
    for text in ('first & 100% "quoted"\n\n```diff\n- gone\n```\n', "second\n"):
        (tmp_path / "plan.md").write_text(MARKER + text)
        done = post(kind, forge, tmp_path)
        assert done.returncode == 0, done.stderr
        for number in range(120):  # so that it stands neither on the first page nor on the last
            forge.say(f"answer {number}")
        trap, own = forge.plans()
        assert (trap, own.rstrip()) == (f"{MARKER}a trap", (MARKER + text).rstrip())


@pytest.mark.parametrize("kind", [GITHUB, GITLAB])
def test_where_the_comments_cant_be_listed_no_second_one_is_put_up(
    forge: Forge, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "plan.md").write_text(f"{MARKER}plan\n")
    assert post(kind, forge, tmp_path).returncode == 0
    forge.listing = 502
    done = post(kind, forge, tmp_path)
    assert done.returncode != 0
    assert "502" in done.stderr
    assert "t0ken" not in done.stderr + done.stdout
    assert len(forge.plans()) == 1


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that a team copies, in a repository without a commit; ``muster`` is on the path."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "clone"
    shutil.copytree(FOLDER, folder)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    return folder


def propose(clone: Path, limit: str) -> tuple[str, str]:
    """Commit what there is, and then another limit of a queue; both revisions."""
    found = []
    for text in ("limit: {gpu: 8}", limit):
        path = clone / "queues.yaml"
        path.write_text(path.read_text().replace("limit: {gpu: 8}", text))
        git(clone, "add", "--all")
        git(clone, "commit", "--quiet", "--message", text)
        found.append(git(clone, "rev-parse", "HEAD"))
    return found[0], found[1]


def shell(script: str, clone: Path, environment: dict[str, str]) -> int:
    """The exit status of a step, run as the runners do."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=clone,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "t0ken" not in done.stdout + done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("limit", "status", "sign"), [("limit: {gpu: 6}", 0, "🟡"), ("limit: {gpu: six}", 3, "❌")]
)
def test_the_steps_of_the_workflow_run_as_they_are_written(
    forge: Forge, clone: Path, limit: str, status: int, sign: str
) -> None:
    folder = clone.parent
    workflow = yaml.safe_load((clone / ".github/workflows/muster.yaml").read_text())
    steps = {one["name"]: one["run"] for one in workflow["jobs"]["plan"]["steps"] if "name" in one}
    base, _ = propose(clone, limit)
    plan = {"BASE": base, "TOKEN": "t0ken", "MUSTER_SERVER": "", "RUNNER_TEMP": str(folder)}
    comment = {
        "GH_TOKEN": "t0ken", "GH_HOST": "github.localhost", "http_proxy": forge.url,
        "REPOSITORY": "o/r", "NUMBER": "5", "HOME": str(folder),
    }  # fmt: skip
    for _ in range(2):
        assert shell(steps["Validate"], clone, {"BASE": base}) == (1 if status else 0)
        assert shell(steps["Plan"], clone, plan) == status
        assert (folder / "muster-token").stat().st_mode & 0o777 == 0o600
        assert shell(steps["Comment"], clone, comment) == 0
        assert [one.splitlines()[1][0] for one in forge.plans()] == [sign]


@pytest.mark.parametrize(("limit", "status"), [("limit: {gpu: 6}", 0), ("limit: {gpu: six}", 3)])
def test_the_job_of_gitlab_runs_as_it_is_written(
    forge: Forge, clone: Path, limit: str, status: int
) -> None:
    job = yaml.safe_load((clone / ".gitlab-ci.yml").read_text())["muster"]
    base, head = propose(clone, limit)
    variables = {
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "CI_COMMIT_SHA": head,
        "MUSTER_GITLAB_TOKEN": "t0ken", "CI_API_V4_URL": f"{forge.url}/api/v4",
        "CI_PROJECT_ID": "3", "CI_MERGE_REQUEST_IID": "5",
    }  # fmt: skip
    for _ in range(2):
        assert shell("\n".join(job["script"]), clone, variables) == status
        # what follows has a shell of its own, and runs also where the script has failed
        assert shell("\n".join(job["after_script"]), clone, variables) == 0
        assert len(forge.plans()) == 1


def test_a_plan_of_thousands_of_jobs_is_cut_to_what_a_forge_takes(
    forge: Forge, clone: Path
) -> None:
    one = (
        "apiVersion: muster/v1\nkind: Job\nmetadata: {{name: job-{0}, labels: {{of: 'ünï-{1}'}}}}\n"
        "spec: {{queue: research, owner: ada@example.org, timeLimit: {1}h, command: [x, '{1}'], "
        "resources: {{gpu: 1}}, priority: {1}, environment: {{SEED: '{1}', RATE: '0.{1}'}}}}"
    )
    for hours in (1, 2):
        text = "\n---\n".join(one.format(number, hours) for number in range(2000))
        (clone / "jobs/many.yaml").write_text(text)
        git(clone, "add", "--all")
        git(clone, "commit", "--quiet", "--message", "many")
    planned = subprocess.run(
        ["ci/plan.sh", "HEAD~1"],
        cwd=clone,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert planned.returncode == 0, planned.stderr + planned.stdout
    comment = (clone / "plan.md").read_text()
    assert CHARACTERS_MAX * 0.9 < len(comment) <= CHARACTERS_MAX
    assert comment.count("```") % 2 == 0
    assert comment.count("<details") == comment.count("</details>")
    assert "cut here" in comment
    for _ in range(2):
        done = post(GITHUB, forge, clone)
        assert done.returncode == 0, done.stderr
    assert len(forge.plans()) == 1
