"""Steps of the demo: what a cluster has to do, each step checked before the next.

It prints each step as it happens, writes ``result.json`` into its folder, and ends every process it
started, also after an interrupt.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from reconciler.demo import environment, reviews
from reconciler.model import desired
from reconciler.model.values import paragraphs, times
from reconciler.model.values.text_lines import split_lines

Json = Any


class DemoStep(msgspec.Struct):
    """A step of the demo, with its result."""

    name: str
    ok: bool = False
    seconds: float = 0.0


#: Steps of training that have to be left for what is done to it: 8 seconds of them at the least.
STEPS_LEFT = 100
#: Of the lines that are printed, wherever they go.
WIDTH = 80


#: In the document of the training.
_STEPS = r'(?<=STEPS: ")\d+(?=")'


class Teller:
    """Says what happens, with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a sentence, wrapped between words; a traceback keeps its lines."""
        head = f"  {time.monotonic() - self._began:6.1f}s  "
        for line in split_lines(text) or [""]:
            lines = paragraphs.wrapped(line, WIDTH, head, " " * len(head)) or [head.rstrip()]
            sys.stdout.write("\n".join(lines) + "\n")
            head = " " * len(head)
        sys.stdout.flush()

    def title(self, text: str) -> None:
        """Print the beginning of a step."""
        sys.stdout.write(f"\n{text}\n")
        sys.stdout.flush()


class Story:
    """Steps of the demo, in order; each uses commits and public commands and checks by the API."""

    def __init__(self, stage: environment.DemoEnvironment, teller: Teller) -> None:
        self.stage = stage
        self.say = teller.say
        self._waiting = reviews.JobBehindTraining(stage, teller.say)

    def start(self) -> None:
        """Start a repository, a controller and four nodes."""
        self.stage.prepare()
        self.say("made a git repository from the example desired state, and a clone of it")
        self.stage.start()

        def ready() -> Json:
            nodes = self.stage.api.get("/v1/nodes")["items"]
            return nodes if [n["state"] for n in nodes] == ["Ready"] * 4 else None

        nodes = self.stage.until("four nodes are Ready", ready)
        for node in nodes:
            capacity = node["capacity"]
            self.say(
                f"{node['name']} is Ready: {capacity['cpu']:g} CPUs, "
                f"{capacity['memory'] / 2**30:g} GiB, {capacity['gpu']:g} simulated GPUs"
            )

    def training(self) -> None:
        """Start a gang of four ranks on two nodes."""
        self.stage.add_jobs("train")
        self.say("committed jobs/train.yaml: 4 ranks, a GPU each, all or none")
        job = self.stage.until_state("train", "Running")
        self._where(job)
        places = {attempt["node"] for attempt in job["attempts"]}
        if len(places) != 2:
            raise environment.StoryError(f"4 ranks on {len(places)} nodes; expected 2 on each of 2")
        first = self.stage.until("a loss is printed", lambda: self._losses("train"))
        self.say(f"the ranks have met; after {first[0][0]} steps the loss is {first[0][1]}")
        self.stage.until("a checkpoint is written", self._checkpoint)

    def sweep(self) -> None:
        """Start an array of 16, and a job that waits for both."""
        self.stage.add_jobs("sweep", "evaluate")
        self.say("committed an array of 16 runs, 8 at once, and evaluate, which depends on all")
        reason = self.stage.until(
            "evaluate says why it waits", lambda: self.stage.job("evaluate")["reasons"]
        )[0]
        self.say(f"evaluate waits: {reason['code']}: {reason['message']}")
        self.stage.until_state("sweep", "Succeeded")
        self.say("all 16 have succeeded")

    def preemption(self) -> None:
        """Let an urgent job preempt a preemptible one."""
        self._in_training()
        self.stage.add_jobs("background")
        self.stage.until_state("background", "Running")
        self.say("background has the other 4 GPUs: nothing is free")
        self.stage.until("background counts", lambda: self._line("background", "counted to"))
        self.stage.add_jobs("urgent")
        job = self.stage.until_state("urgent", "Running", "Succeeded")
        self.say("urgent runs: background got its checkpoint signal and left")
        self._where(job)
        saved = self.stage.shared_file("background", "task-0").read_text(encoding="utf-8")
        self.say(f"background saved its count at {saved} and waits again")
        self.stage.until_state("urgent", "Succeeded")
        self.stage.until_state("background", "Running", "Succeeded")
        resumed = self.stage.until(
            "background goes on", lambda: self._line("background", "begins at")
        )
        if resumed.endswith("begins at 0"):
            raise environment.StoryError("background began at zero again")
        self.say(f"background is back: {resumed}")

    def agent_dies(self) -> None:
        """Kill an agent; its tasks continue."""
        job = self._in_training()
        node = _live(job)[0]["node"]
        before = {attempt["id"] for attempt in _live(job)}
        nodes = self.stage.cluster.nodes
        if nodes is None:
            raise environment.StoryError("there are no nodes")
        steps = len(self._losses("train"))
        nodes.kill_agent(node)
        self.say(f"the agent of {node} is dead (SIGKILL); its tasks go on")
        nodes.start(node)
        self.stage.until("training goes on", lambda: len(self._losses("train")) > steps)
        after = {attempt["id"] for attempt in _live(self.stage.job("train"))}
        if before != after:
            raise environment.StoryError("tasks were started anew instead of adopted")
        self.say("a new agent has adopted them: the same attempts go on, the loss still falls")

    def node_dies(self) -> None:
        """Kill a node with everything on it; the gang finishes elsewhere."""
        job = self._in_training()
        node = _live(job)[-1]["node"]
        nodes = self.stage.cluster.nodes
        if nodes is None:
            raise environment.StoryError("there are no nodes")
        nodes.kill_node(node)
        self.say(f"{node} is dead with everything on it")

        def elsewhere() -> Json:
            found = _live(self.stage.job("train"))
            placed = found and all(a["attempt"] > 1 and a["node"] != node for a in found)
            return found if placed else None

        found = self.stage.until("the gang is placed elsewhere", elsewhere)
        self.say(
            "its lease is over: all four ranks start again on "
            + " and ".join(sorted({attempt["node"] for attempt in found}))
        )
        line = self.stage.until("a rank resumes", lambda: self._line("train", "resumes from"))
        self.say(line)

    def mistakes(self) -> None:
        """Mistakes are refused where they are, and stop nothing else."""
        path = self.stage.clone / "queues.yaml"
        good = path.read_text(encoding="utf-8")
        path.write_text(good.replace("limit: {gpu: 8}", "limit: {gpu: eight}"), encoding="utf-8")
        self.stage.commit("Give research eight GPUs, in letters")
        problem = self.stage.until("the queue is refused", lambda: self._problem("queues.yaml"))
        self.say(f"refused: {_told(problem)}")
        queue = next(
            q for q in self.stage.api.get("/v1/queues")["items"] if q["name"] == "research"
        )
        self.say(
            f"the last good structure is in force: research may have {queue['limit']['gpu']:g}"
        )
        (self.stage.clone / "jobs" / "typo.yaml").write_text(
            "apiVersion: muster/v1\nkind: Job\nmetadata: {name: typo}\n"
            "spec:\n  comand: [echo, never]\n",
            encoding="utf-8",
        )
        (self.stage.clone / "jobs" / "after.yaml").write_text(
            "apiVersion: muster/v1\nkind: Job\nmetadata: {name: after}\n"
            "spec:\n  queue: vision\n  command: [echo, jobs go on]\n",
            encoding="utf-8",
        )
        self.stage.commit("Submit a job with a typing error and one without")
        problem = self.stage.until("the job is refused", lambda: self._problem("jobs/typo.yaml"))
        self.say(f"refused: {_told(problem)}")
        self.stage.until_state("after", "Succeeded")
        self.say("the job beside it ran, under the structure that is in force")
        path.write_text(good, encoding="utf-8")
        (self.stage.clone / "jobs" / "typo.yaml").unlink()
        self.stage.commit("Mend both")
        self.stage.until(
            "git and cluster agree",
            lambda: self.stage.api.get("/v1/sync")["sync"]["sync"] == "Synced",
        )
        self.say("mended: Synced")

    def before_the_merge(self) -> None:
        """Tell why a job waits and until when, and what a branch would make of that."""
        self._in_training()
        self._waiting.wait()
        self._waiting.plan()

    def drift(self) -> None:
        """Change something by hand, and let git heal it."""
        reviews.drift(self.stage, self.say)

    def past(self) -> None:
        """Decide a moment of the past again."""
        self._waiting.replay()

    def finish(self) -> None:
        """Wait until all jobs have ended, and print where and how long they ran."""
        self.stage.until_state("train", "Succeeded", timeout_s=90)
        losses = self._losses("train")
        if not losses:
            raise environment.StoryError("training has told no loss since it resumed")
        self.say(f"training is done: loss {losses[-1][1]} after {losses[-1][0]} steps")
        self.stage.until_state("evaluate", "Succeeded")
        for line in split_lines(self.stage.output("evaluate")):
            self.say(f"evaluate: {line}")
        self.stage.until_state("background", "Succeeded")

    def table(self) -> None:
        """Print what ran where."""
        rows = [("JOB", "STATE", "TRIES", "TASKS", "NODES", "SECONDS")]
        for item in reversed(self.stage.api.items("/v1/jobs")):
            job = self.stage.job(item["name"])
            nodes = sorted({a["node"].removeprefix("virtual-") for a in job["attempts"]})
            tries = max((a["attempt"] for a in job["attempts"]), default=0)
            seconds = _seconds(job)
            count = str(len(job["attempts"]))
            rows.append((job["name"], job["state"], str(tries), count, ",".join(nodes), seconds))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write(f"  {line.rstrip()}\n")

    def _in_training(self) -> Json:
        """Return the training while enough of it is left; on a busy machine it may be almost done.

        Then a commit requests another run with more steps, which continues from the checkpoint.
        """
        job, losses = self.stage.job("train"), self._losses("train")
        path = self.stage.clone / "jobs" / "train.yaml"
        text = path.read_text(encoding="utf-8")
        steps = int(re.findall(_STEPS, text)[0])
        if job["state"] == "Running" and losses and losses[-1][0] + STEPS_LEFT <= steps:
            return job
        run = int(job["run"]) + 1
        text = re.sub(_STEPS, str(steps + 2 * STEPS_LEFT), text, count=1)
        text = re.sub(r"(?m)^spec:\n(  run: \d+\n)?", f"spec:\n  run: {run}\n", text, count=1)
        path.write_text(text, encoding="utf-8")
        self.stage.commit("Train for longer")
        self.say("training is nearly done: committed a run of more steps from its checkpoint")

        def again() -> Json:
            found = self.stage.job("train")
            ready = found["run"] == run and found["state"] == "Running"
            return found if ready and self._losses("train") else None

        return self.stage.until("training goes on", again, 120.0)

    def _where(self, job: Json) -> None:
        places = ", ".join(
            f"{a['task']} on {a['node']} GPU {','.join(map(str, a['devices']))}" for a in _live(job)
        )
        if places:
            self.say(places)

    def _losses(self, name: str) -> list[tuple[int, str]]:
        found = []
        for line in split_lines(self.stage.output(name, task="main-0")):
            words = line.split()
            if line.startswith("step ") and len(words) == 4:
                found.append((int(words[1]), words[3]))
        return found

    def _line(self, name: str, words: str) -> str:
        lines = split_lines(self.stage.output(name, task="main-0"))
        return next((line for line in reversed(lines) if words in line), "")

    def _checkpoint(self) -> bool:
        return self.stage.shared_file("train", "model.npz").exists()

    def _problem(self, path: str) -> Json:
        problems = self.stage.api.get("/v1/sync")["sync"]["problems"]
        return next((p for p in problems if p["path"] == path and p["severity"] == "error"), None)


def _live(job: Json) -> list[Json]:
    return sorted(
        (a for a in job["attempts"] if a["state"] != "Ended"), key=lambda a: str(a["task"])
    )


def _told(problem: Json) -> str:
    return desired.Problem(**problem).text()


def _seconds(job: Json) -> str:
    """Return how long a job took from its first start to its end."""
    if not job["started"] or not job["ended"]:
        return "-"
    return f"{times.parse_time(job['ended']) - times.parse_time(job['started']):.1f}"


_PLAN = "muster plan rush --base main (in demo/clone)"
#: Title of each step, what it does, and what to try oneself then.
STEPS: tuple[tuple[str, Callable[[Story], None], str], ...] = (
    ("A cluster from a git repository", Story.start, "muster nodes"),
    ("1. Data-parallel training: 2 nodes x 2 ranks", Story.training, "muster logs -f train"),
    ("2. A sweep of 16, and a job that depends on both", Story.sweep, "muster job sweep"),
    ("3. A job that cannot wait", Story.preemption, "muster events --job background"),
    ("4a. An agent dies, its tasks do not", Story.agent_dies, "muster job train"),
    ("4b. A whole node dies", Story.node_dies, "muster drift"),
    ("5. Mistakes are refused where they are", Story.mistakes, "muster status"),
    ("6. A wait has a reason and an end, a change a price", Story.before_the_merge, _PLAN),
    ("7. What is done by hand is seen, and healed", Story.drift, "muster history"),
    ("8. The past is decided again", Story.past, "muster explain next --at 30s"),
    ("9. What ran where", Story.finish, "muster report usage --by user"),
)


def play(folder: Path, *, keep: bool) -> int:
    """Play the story in ``folder``, and return 0 if every step went as told."""
    is_stopping = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    teller = Teller()
    stage = environment.DemoEnvironment(folder, lambda: is_stopping)
    story = Story(stage, teller)
    began = time.monotonic()
    steps: list[DemoStep] = []
    code = 0
    try:
        for name, act, to_try in STEPS:
            teller.title(name)
            step = DemoStep(name)
            steps.append(step)
            at = time.monotonic()
            act(story)
            step.ok, step.seconds = True, round(time.monotonic() - at, 2)
            teller.say(f"try it: {to_try}")
        story.table()
        while keep and not is_stopping:
            time.sleep(0.2)
    except environment.Interrupted:
        teller.say("interrupted")
        code = 130
    except environment.StoryError as error:
        teller.say(f"this went wrong: {error}")
        teller.say(f"logs: {stage.cluster.state}")
        code = 1
    finally:
        stage.close()
        if stage.prepared and stage.folder.is_dir():
            seconds = round(time.monotonic() - began, 2)
            result = {"steps": steps, "ok": code == 0, "seconds": seconds}
            text = msgspec.json.format(msgspec.json.encode(result))
            (stage.folder / "result.json").write_bytes(text + b"\n")
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.stdout.write(f"\n{'All of it is done' if code == 0 else 'Not all was done'}")
    sys.stdout.write(f" in {time.monotonic() - began:.0f} s.\n")
    if code == 0 and not keep:
        sys.stdout.write("To try the commands: muster demo --keep leaves the cluster running.\n")
    return code
