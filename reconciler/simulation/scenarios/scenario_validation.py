"""Refuses scenarios that cannot be, instead of running them silently.

A document of the right form comes in; nothing comes out, or a refusal with place, what was found
and what was expected. Numbers have the bounds of a cluster's documents. Unusual situations are
accepted: guarantees may exceed each other, limits may be below usage, and nodes may be
overcommitted.
"""

from reconciler.model.state.states import JobState
from reconciler.model.values import found_values, quantities
from reconciler.simulation.scenarios import schema

#: Bounds of priorities and weights, as ``Job`` and ``Queue`` have them.
PRIORITY_MAX = WEIGHT_MAX = 10**6
#: The most GPUs of one task.
GPUS_MAX = 10**6
#: States that jobs and tasks are found in.
STATES = tuple(state.value.lower() for state in JobState)
_WHOLE = 1000


def check(scenario: schema.Scenario) -> None:
    """Raise unless a cluster may be in this situation, and in the expected one.

    Raises:
        ScenarioError: it cannot.
    """
    _within(scenario.until, 0, None, "until")
    _queues(scenario.queues)
    for number, job in enumerate(scenario.jobs):
        _job(job, f"jobs[{number}]")
    for kind in ("jobs", "tasks"):
        expected: dict[str, schema.ExpectedOutcome] = getattr(scenario.expect, kind)
        for name, one in expected.items():
            _state(one.state, f"expect.{kind}.{name}.state")


def _within(
    value: float | None, least: int, most: int | None, where: str, *, words: str = ""
) -> None:
    if value is None or (least <= value and (most is None or value <= most)):
        return
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    told = f"at least {least}" if most is None else f"{least} to {most}"
    raise _refused(shown, words or told, where)


def _refused(found: object, expected: str, where: str) -> schema.ScenarioError:
    return schema.ScenarioError(f"found {found}; expected {expected}", where)


def _queues(queues: list[schema.ScenarioQueue]) -> None:
    known: dict[str, int] = {}
    for number, queue in enumerate(queues):
        where = f"queues[{number}]"
        first = known.setdefault(queue.name, number)
        if first != number:
            told = f"a name of its own: queues[{first}] has this one"
            raise _refused(
                f"a second queue {found_values.quote(queue.name)}", told, f"{where}.name"
            )
        _within(queue.weight, 0, WEIGHT_MAX, f"{where}.weight")
        _within(queue.priority, -PRIORITY_MAX, PRIORITY_MAX, f"{where}.priority")
        for index, flavor in enumerate(queue.flavors):
            _within(flavor.weight, 0, WEIGHT_MAX, f"{where}.flavors[{index}].weight")


def _job(job: schema.ScenarioJob, where: str) -> None:
    _within(job.priority, -PRIORITY_MAX, PRIORITY_MAX, f"{where}.priority")
    _within(job.duration, 0, None, f"{where}.duration")
    _within(
        job.time_limit,
        1,
        quantities.LARGEST_AMOUNT,
        f"{where}.timeLimit",
        words="1 to 2^62 seconds",
    )
    _within(job.submit, 0, None, f"{where}.submit")
    for number, task in enumerate(job.tasks):
        place = f"{where}.tasks[{number}]"
        gpu = schema.amount("gpu", task.gpu, place)
        if gpu > _WHOLE and gpu % _WHOLE:
            told = "a whole number, or a share of one device, below 1"
            raise _refused(task.gpu, told, f"{place}.gpu")
        if gpu > GPUS_MAX * _WHOLE:
            raise _refused(task.gpu, f"at most {GPUS_MAX}", f"{place}.gpu")
        if job.submit and task.state == "running":
            found = f"running, of a job that is submitted at second {job.submit:g}"
            told = "pending, or a job without `submit`: what runs is there at the start"
            raise _refused(found, told, f"{place}.state")


def _state(state: str | None, where: str) -> None:
    """Check a state; several states of a job are separated by a comma and a space."""
    for one in () if state is None else state.split(", "):
        if one not in STATES:
            told = f"one of {', '.join(STATES)}, or several with a comma and a space between"
            raise _refused(found_values.quote(state), told, where)
