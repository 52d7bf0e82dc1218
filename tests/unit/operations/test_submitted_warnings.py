"""What is accepted with a warning says so to whoever submits it."""

from reconciler.model import desired
from reconciler.operations import submission
from tests.unit.core.world import World

TEXT = """\
apiVersion: muster/v1
kind: Job
metadata: {name: %s}
spec: {resources: {gpu: %d}, command: [nvidia-smi]}
"""


def test_what_no_pool_could_ever_hold_is_told() -> None:
    structure = World(nodes=1, gpu=2).structure
    assert isinstance(structure, desired.Structure)
    text = "---\n".join((TEXT % ("small", 2), TEXT % ("large", 9)))
    small, large = submission.read(text, "ann", structure)
    assert small.warnings == ()
    (told,) = large.warnings
    assert told.startswith("no pool could ever hold a task of group main: pool: 9 gpu asked")
