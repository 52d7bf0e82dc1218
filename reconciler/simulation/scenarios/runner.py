"""Runs scenarios: rounds of virtual time through the real ``reconcile``, then a verdict.

A round is a minute. The states after the rounds that count are compared with the expectations, and
again for some more rounds, because a decision that is taken back does not count.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from reconciler.core import reconcile
from reconciler.model.state.states import AttemptState
from reconciler.simulation.engine import simulated_cluster, simulated_controller, world
from reconciler.simulation.scenarios import builder, scenario_validation
from reconciler.simulation.scenarios.schema import ExpectedOutcome, Scenario

#: Seconds of virtual time in a round.
ROUND_S = 60.0
#: In which order several states of one job are told.
_PRECEDENCE = ("running", *(state for state in scenario_validation.STATES if state != "running"))


class ScenarioVerdict(msgspec.Struct, frozen=True):
    """Verdict on one scenario.

    Attributes:
        exact: states and nodes agree, after every round that counts.
        states: states and starts agree.
        expected, found: values that disagree, by name; ``found`` of a scenario that could not be
        run
            has the reason under ``*``.
    """

    exact: bool
    states: bool
    expected: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, Any]] = {}


def run(scenario: Scenario) -> ScenarioVerdict:
    """Run a scenario and compare.

    Raises:
        ScenarioError: an amount is invalid, or a name is unknown.
    """
    situation = builder.build(scenario)
    if situation.missing:
        why = f"not built yet: {', '.join(situation.missing)}"
        return ScenarioVerdict(exact=False, states=False, found={"*": {"state": why}})
    story = _Story(scenario, situation)
    if scenario.rounds is None:
        story.cluster.run(builder.BEGIN + (scenario.until or 0.0))
        return story.verdict()
    verdict = ScenarioVerdict(exact=True, states=True)
    rounds = scenario.rounds
    for number in range(1, rounds.settle + rounds.stable + 1):
        story.cluster.run(builder.BEGIN + number * ROUND_S, inclusive=False)
        if number < rounds.settle:
            continue
        now = story.verdict()
        if not now.states:
            return now
        verdict = now if not now.exact else verdict
    return verdict


def begun(
    situation: builder.ScenarioStart, decide: simulated_controller.Decide = reconcile.reconcile
) -> simulated_cluster.SimulatedCluster:
    """Return the cluster of a situation at its beginning; later jobs come by themselves.

    ``decide``: the controller's decision function.
    """
    cluster = simulated_cluster.SimulatedCluster(
        situation.structure,
        now=builder.BEGIN,
        jobs=situation.jobs,
        observed=situation.observed,
        surroundings=world.World(fates=partial(builder.fate_of, situation)),
        decide=decide,
    )
    for at, job in situation.later:
        cluster.at(at, partial(cluster.commit, (job,)))
    return cluster


class _Story:
    """A running scenario."""

    def __init__(self, scenario: Scenario, situation: builder.ScenarioStart) -> None:
        self.scenario = scenario
        self.situation = situation
        self.cluster = begun(situation)

    def verdict(self) -> ScenarioVerdict:
        """Return the verdict at this moment."""
        found = self._found()
        exact, states = True, True
        differs: dict[str, ExpectedOutcome] = {}
        for name, expected in (self.scenario.expect.jobs | self.scenario.expect.tasks).items():
            actual = found[name]
            same_state = expected.state is None or _states(expected.state) == _states(actual.state)
            same_start = expected.start is None or _close(expected.start, actual.start)
            same_node = expected.node in (None, actual.node)
            if same_state and same_start and same_node:
                continue
            exact = False
            states = states and same_state and same_start
            differs[name] = expected
        shown = {
            name: {k: v for k, v in msgspec.to_builtins(found[name]).items() if v is not None}
            for name in differs
        }
        wanted = {name: msgspec.to_builtins(expected) for name, expected in differs.items()}
        return ScenarioVerdict(exact=exact, states=states, expected=wanted, found=shown)

    def _found(self) -> dict[str, ExpectedOutcome]:
        """Return the current state of every job and task."""
        memory = self.cluster.memory
        running: dict[tuple[str, str, int], str] = {
            (a.job, a.group, a.index): a.node
            for a in memory.attempts.values()
            if a.state is AttemptState.RUNNING
        }
        found: dict[str, ExpectedOutcome] = {}
        for name, tasks in self.situation.tasks.items():
            record = memory.jobs.get(name)
            rest = record.state.value.lower() if record and record.finished else "pending"
            start = record.started_at if record else None
            start = None if start is None else start - builder.BEGIN
            states, nodes = [], []
            for index, (group, number) in enumerate(tasks):
                node = running.get((name, group, number))
                states.append("running" if node else rest)
                nodes.append(node)
                found[f"{name}-{index}"] = ExpectedOutcome(state=states[-1], node=node, start=start)
            found[name] = ExpectedOutcome(
                state=_together(sorted(states, key=_PRECEDENCE.index)),
                node=_together(n for n in nodes if n),
                start=start,
            )
        return found


def _close(expected: float, actual: float | None) -> bool:
    return actual is not None and math.isclose(expected, actual, abs_tol=1e-6)


def _states(told: str | None) -> set[str]:
    """Return the states of a job's tasks, in no particular order."""
    return set((told or "").split(", "))


def _together(values: Iterable[str]) -> str | None:
    """Return the one value that all share, or all values."""
    return ", ".join(dict.fromkeys(values)) or None
