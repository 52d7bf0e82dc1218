"""Random stories in which stores are lost, restored from earlier moments, or led beside another."""

import random

import msgspec

from tests.simulation import sizes, stories
from tests.simulation.plans import Plan, Step

#: For how long the store did not know at a restore what happened.
AGES_S = (2.0, 15.0, 60.0, 200.0, 400.0)
#: How another controller beside the first ends: who stops, cleanly or not, or stands still.
ENDINGS = ("first-stops", "first-killed", "first-pauses", "second-stops")


def draw(seed: int) -> Plan:
    """Return the story of a seed: one of small clusters, with faults of its store."""
    plan = stories.draw(seed, sizes.SMALL)
    chance = random.Random(f"{seed} stores")
    steps = list(plan.steps)
    at = chance.uniform(60, 250)
    for number in range(chance.choice([1, 1, 2])):
        steps += _fault(chance, f"copy{number}", at, plan.nodes())
        at += chance.uniform(150, 400)
    steps.sort(key=lambda step: step.at)
    return msgspec.structs.replace(plan, steps=tuple(steps))


def _fault(chance: random.Random, name: str, at: float, nodes: tuple[str, ...]) -> list[Step]:
    kept = Step(max(0.0, at - chance.choice(AGES_S)), "keep-store", name)
    kind = chance.choice(["restore", "restore", "lose", "second", "second"])
    if kind == "restore":
        marked = ("is_marked", chance.random() < 0.7)
        knows_key = ("knows_key", chance.random() < 0.9)
        return [kept, Step(at, "restore-store", name, fields=(marked, knows_key))]
    if kind == "lose":
        return [Step(at, "lose-store", fields=(("knows_key", chance.random() < 0.7),))]
    moved = tuple(node for node in nodes if chance.random() < 0.4)
    fields = (
        ("ending", chance.choice(ENDINGS)),
        ("lasts_s", chance.choice([20.0, 200.0, 450.0, 600.0])),
        ("moved", moved),
        ("knows_key", chance.random() < 0.5),
    )
    is_old = chance.random() < 0.7
    begun = Step(at, "second-store", name if is_old else "", fields=fields)
    return [kept, begun] if is_old else [begun]
