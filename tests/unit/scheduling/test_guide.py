"""The example of ``docs/guides/queue-administrator/queues.md`` comes out as the guide says."""

import msgspec
import yaml

from reconciler import package_data
from reconciler.model.documents.queue_spec import QueueDocument
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, code, message, started

GUIDE = package_data.checkout() / "docs" / "guides" / "queue-administrator" / "queues.md"


def guide_situation() -> Situation:
    """The queues as written in the guide, on one node of eight GPUs."""
    block = GUIDE.read_text().split("```yaml\n")[1].split("```")[0]
    s = Situation().node("n", gpu=8)
    for document in yaml.safe_load_all(block):
        queue = msgspec.convert(document, QueueDocument)
        guaranteed, limit = queue.spec.guaranteed.gpu, queue.spec.limit.gpu
        s.queue(
            queue.metadata.name,
            queue.spec.parent,
            guaranteed=int(guaranteed or 0),
            limit=None if limit is None else int(limit),
        )
    return s


def test_the_example_of_the_guide() -> None:
    s = guide_situation().job("sweep", "batch", gpu=1, array=10)
    decisions = s.decide()
    assert started(decisions) == ["sweep"] * 6
    assert (
        f"{code(s, decisions, 'sweep')}: {message(s, decisions, 'sweep')}"
        in GUIDE.read_text().replace("\n   ", " ")
    )
    s.apply(decisions).job("train", "vision", gpu=4)
    decisions = s.decide()
    assert len(situations.evicted(decisions)) == 2
    assert code(s, decisions, "train") == "WaitingForEvictions"
    s.apply(decisions).left()
    decisions = s.decide()
    assert started(decisions) == ["train"]
    s.apply(decisions).job("large", "language", gpu=6)
    assert code(s, s.decide(), "large") == "InsufficientResources"
    del s.jobs["large"]
    decisions = s.job("small", "language", gpu=4).decide()
    assert len(situations.evicted(decisions)) == 4
