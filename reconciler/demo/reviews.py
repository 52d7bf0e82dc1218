"""Steps of the demo about what is known before and after: plans, reasons, drift, past decisions.

They run the commands that people would, and print what these say.
"""

import time
from collections.abc import Callable, Sequence

from reconciler.demo import environment
from reconciler.model.values.text_lines import split_lines
from reconciler.model.values.times import format_time

Say = Callable[[str], None]
#: A gang that has room only once the training is over.
NEXT = """\
apiVersion: muster/v1
kind: Job
metadata: {name: next}
spec:
  queue: vision
  owner: grace@example.org
  count: 6
  resources: {cpu: 500m, memory: 32Mi, gpu: 1}
  timeLimit: 1m
  command: [echo, my turn]
"""
#: What somebody would like to run meanwhile, on the GPUs that are free.
RUSH = """\
apiVersion: muster/v1
kind: Job
metadata: {name: rush}
spec:
  queue: vision
  owner: linus@example.org
  priorityClass: urgent
  count: 2
  resources: {cpu: 500m, memory: 32Mi, gpu: 1}
  timeLimit: 1h
  command: [sleep, 1h]
"""


class JobBehindTraining:
    """A job that waits, what its wait is told by, and what would make it longer."""

    def __init__(self, stage: environment.DemoEnvironment, say: Say) -> None:
        self._stage, self._say = stage, say

    def wait(self) -> None:
        """Submit a job that has to wait, and tell why and until when."""
        self._commit({"next": NEXT}, "Submit next, which needs all GPUs that are left")
        self._stage.until("next says why it waits", lambda: self._stage.job("next")["reasons"])
        self._stage.until(
            "next has an estimate", lambda: self._stage.job("next").get("estimatedStart")
        )
        told = self._run("explain", "next")
        code = self._stage.job("next")["reasons"][0]["code"]
        self._show(told, ("next is", f"{code}:", "Place", "Estimated"))

    def plan(self) -> None:
        """Plan a branch with a job that would go before it; nothing is merged."""
        stage = self._stage
        stage.git("checkout", "--quiet", "-B", "rush", folder=stage.clone)
        self._write({"rush": RUSH})
        stage.git("add", "--all", folder=stage.clone)
        stage.git("commit", "--quiet", "--message", "Submit rush", folder=stage.clone)
        told = self._run("plan", "rush", "--base", "main")
        stage.git("checkout", "--quiet", "main", folder=stage.clone)
        lines = split_lines(told)
        if not any(line.split()[:1] == ["next"] for line in lines):
            raise environment.StoryError(f"the plan does not tell of next:\n{told}")
        self._show(told, ("+ Job/rush", "next ", "rush ", "train ", "queue ", "Plan:"))
        self._say("so the pull request says who would pay for it, and is not merged")

    def replay(self) -> None:
        """Let it start, and decide a moment of its wait again."""
        at = format_time(time.time())
        self._stage.until_state("next", "Succeeded", timeout_s=120.0)
        self._say("the training is over: next has run")
        told = self._run("explain", "next", "--at", at)
        if "next was Pending" not in told:
            raise environment.StoryError(f"the past is told differently:\n{told}")
        self._show(told, ("Cycle", "next was", "InsufficientResources:", "Estimated"))
        self._say("that cycle was decided again from the journal, to the same end")

    def _commit(self, jobs: dict[str, str], message: str) -> None:
        self._write(jobs)
        self._stage.commit(message)

    def _write(self, jobs: dict[str, str]) -> None:
        for name, text in jobs.items():
            path = self._stage.clone / "jobs" / f"{name}.yaml"
            path.write_text(text, encoding="utf-8")

    def _run(self, *arguments: str) -> str:
        self._say(f"$ muster {' '.join(arguments)}")
        return self._stage.muster(*arguments)

    def _show(self, told: str, beginnings: Sequence[str]) -> None:
        """Print those lines of what a command printed that begin with one of some words."""
        for line in split_lines(told):
            if line.strip().startswith(tuple(beginnings)):
                self._say(" ".join(line.split()))


def drift(stage: environment.DemoEnvironment, say: Say) -> None:
    """Change the cluster behind git's back, while git is away; git heals it."""
    away = stage.folder / "repository.away"
    home = stage.folder / "repository.git"
    home.rename(away)
    try:
        say("git is away: $ muster drain virtual-0 --override --reason 'a loud fan'")
        stage.muster("drain", "virtual-0", "--override", "--reason", "a loud fan")
        found = stage.until(
            "the drain is drift",
            lambda: [
                one
                for one in stage.api.get("/v1/drift")["items"]
                if one["kind"] == "node-drained-by-override"
            ],
        )
        say(f"$ muster drift: {found[0]['subject']}: {found[0]['message']}")
    finally:
        away.rename(home)
    say("git is back: $ muster drain virtual-0 --reason 'a loud fan'")
    stage.muster("drain", "virtual-0", "--reason", "a loud fan")
    stage.until(
        "the drift is gone",
        lambda: (
            not any(
                one["kind"] == "node-drained-by-override"
                for one in stage.api.get("/v1/drift")["items"]
            )
        ),
    )
    said = stage.git("log", "-1", "--format=%s, by %an", "main", folder=home)
    say(f"git has it now, and nothing drifts: {said}")
    stage.muster("undrain", "virtual-0")
