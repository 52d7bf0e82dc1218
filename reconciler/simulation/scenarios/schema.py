"""The format of scenarios: a cluster's situation, and its expected outcome.

A document comes in as plain values and is checked against the types here, which have exactly the
format's fields, so that a misspelt field is refused.
"""

import re
from typing import Any, Literal

import msgspec

from reconciler.model.values import quantities

ROUNDS_MAX = 10_000

Number = int | float | str

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class ScenarioError(ValueError):
    """A document that cannot be run; ``where`` is a dotted path in it."""

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


def amount(kind: Literal["cpu", "memory", "gpu"], written: Number, where: str) -> int:
    """Return milli-CPUs, bytes or milli-GPUs; ``where`` is the place of the amount.

    Raises:
        ScenarioError: it is invalid.
    """
    parse = {
        "cpu": quantities.parse_cpu,
        "memory": quantities.parse_memory,
        "gpu": quantities.parse_gpu,
    }[kind]
    try:
        return parse(written)
    except quantities.QuantityError as error:
        raise ScenarioError(str(error), f"{where}.{kind}") from error


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A mapping of a document."""


class ScenarioNode(_Part, frozen=True):
    """A node; ``cpu`` and ``memory`` None: more than anyone asks for.

    ``pool`` None: a pool of its own, with its name. Nodes of one pool differ only in their names.
    """

    cpu: Number | None = None
    memory: Number | None = None
    gpu: Number = 0
    labels: dict[str, str | int | float | bool] = {}
    pool: str | None = None


class ScenarioAmounts(_Part, frozen=True):
    """Amounts of a queue. None means that it is not named."""

    cpu: Number | None = None
    memory: Number | None = None
    gpu: Number | None = None


class ScenarioFlavor(_Part, frozen=True):
    """Amounts of a queue in one pool. None means that it is not named."""

    pool: str
    guaranteed: ScenarioAmounts | None = None
    limit: ScenarioAmounts | None = None
    lending_limit: ScenarioAmounts | None = None
    weight: float | None = None


class ScenarioQueue(_Part, frozen=True):
    """A queue; ``guaranteed`` None: as much as there is. ``flavors`` are amounts by pool."""

    name: str
    parent: str | None = None
    guaranteed: ScenarioAmounts | None = None
    limit: ScenarioAmounts | None = None
    lending_limit: ScenarioAmounts | None = None
    weight: float | None = None
    priority: int | None = None
    flavors: list[ScenarioFlavor] = []


class ScenarioTask(_Part, frozen=True):
    """A task of a job; a running one names its node, and its devices if it has shares of them.

    ``priority`` orders the tasks of its job: of a gang that runs in part, higher ones are present.
    """

    gpu: Number = 0
    cpu: Number = 0
    memory: Number = 0
    state: Literal["running", "pending"] = "pending"
    node: str | None = None
    devices: list[str | int] = []
    priority: int = 0


class ScenarioJob(_Part, frozen=True):
    """A job. ``duration``, ``time_limit`` and ``submit`` in seconds."""

    name: str
    queue: str
    tasks: list[ScenarioTask]
    priority: int | None = None
    preemptible: bool = True
    min: int | None = None
    duration: float | None = None
    time_limit: int | None = None
    submit: float = 0.0
    pools: list[str] = []
    exclusive: bool = False


class Rounds(_Part, frozen=True):
    """Number of rounds until the first comparison, and number of rounds compared after it."""

    settle: int = 2
    stable: int = 0


class ExpectedOutcome(_Part, frozen=True, omit_defaults=True):
    """Expected state of every task, its node, and the second of the first start."""

    state: str | None = None
    node: str | None = None
    start: float | None = None


class Expectations(_Part, frozen=True):
    """Expectations by name of a job, and by ``JOB-INDEX`` of a task."""

    jobs: dict[str, ExpectedOutcome] = {}
    tasks: dict[str, ExpectedOutcome] = {}


class Scenario(_Part, frozen=True):
    """One document."""

    scenario: str
    source: str
    nodes: dict[str, ScenarioNode]
    queues: list[ScenarioQueue]
    jobs: list[ScenarioJob]
    expect: Expectations
    rounds: Rounds | None = None
    until: float | None = None
    policy: dict[str, Any] = {}


def parse(value: Any) -> Scenario:
    """Return a document's plain values as a scenario.

    Raises:
        ScenarioError: a field is unknown, missing or of another type.
    """
    try:
        scenario = msgspec.convert(value, Scenario)
    except msgspec.ValidationError as error:
        raise explained(str(error), value) from error
    if (scenario.until is None) == (scenario.rounds is None):
        raise ScenarioError("it needs either `rounds` or `until`", "")
    rounds = scenario.rounds or Rounds()
    if not (
        rounds.settle >= 1 and rounds.stable >= 0 and rounds.settle + rounds.stable <= ROUNDS_MAX
    ):
        raise ScenarioError(
            f"expected settle from 1, stable from 0, {ROUNDS_MAX} together", "rounds"
        )
    known = {job.name for job in scenario.jobs}
    for name in scenario.expect.jobs:
        if name not in known:
            raise ScenarioError(f"there is no Job/{name}", f"expect.jobs.{name}")
    sizes = {job.name: len(job.tasks) for job in scenario.jobs}
    for name in scenario.expect.tasks:
        job, _, index = name.rpartition("-")
        if not index.isdecimal() or int(index) >= sizes.get(job, 0):
            raise ScenarioError(f"there is no Task/{name}", f"expect.tasks.{name}")
    return scenario


def explained(told: str, value: Any) -> ScenarioError:
    """Return the decoder's message, with the whole path of the field."""
    message, _, path = told.partition(" - at `")
    where = path.rstrip("`").removeprefix("$").lstrip(".")
    field = _UNKNOWN.search(message)
    if field is not None:
        where = f"{where}.{field[1]}".lstrip(".")
        message = "there is no such field"
    where = _with_keys(where, value)
    return ScenarioError(message, where)


def _with_keys(where: str, value: Any) -> str:
    """Return a path with ``[...]``, the decoder's text for any key, replaced by the first that
    fits.
    """
    before, found, after = where.partition("[...]")
    if not found:
        return where
    inner = value
    for step in before.split("."):
        inner = inner.get(step, {}) if isinstance(inner, dict) else {}
    rest = after.lstrip(".").partition(".")[0]
    keys = list(inner) if isinstance(inner, dict) else []
    fitting = (k for k in keys if isinstance(inner[k], dict) and rest in inner[k])
    key = next(fitting, "*")
    return f"{before}.{key}{after}"
