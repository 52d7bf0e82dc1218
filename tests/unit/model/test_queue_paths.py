"""Paths from a queue to the root of its tree."""

from reconciler.model import desired
from reconciler.model.policy import queue_paths


def test_ancestors_end_at_the_root_and_in_circles() -> None:
    parents = {"team": "org", "org": None, "a": "b", "b": "a", "lost": "gone"}
    assert queue_paths.ancestors("team", parents.get) == ["org"]
    assert queue_paths.ancestors("org", parents.get) == []
    assert queue_paths.ancestors("a", parents.get) == ["b", "a"]
    assert queue_paths.ancestors("lost", parents.get) == ["gone"]
    assert queue_paths.ancestors("unknown", parents.get) == []


def test_a_path_has_declared_queues_only() -> None:
    parents = {"team": "org", "org": None, "a": "b", "b": "a", "lost": "gone"}
    queues = {name: desired.Queue(name, parent=parent) for name, parent in parents.items()}
    assert desired.path_to_root(queues, "team") == ("team", "org")
    assert desired.path_to_root(queues, "a") == ("a", "b")
    assert desired.path_to_root(queues, "lost") == ("lost",)
    assert desired.path_to_root(queues, "unknown") == ()
