"""Hints for misplaced fields: names that people try first, by habit or from other systems.

A kind, the path of a mapping, and an unknown key come in; the path of the intended field goes out.
The table has only keys that come up again and again.
"""

from collections.abc import Mapping
from typing import Any

from reconciler.desired.documents import yaml_reader

_TASK: Mapping[str, str] = {
    "gpu": "resources.gpu",
    "gpus": "resources.gpu",
    "gres": "resources.gpu",
    "nvidia.com/gpu": "resources.gpu",
    "cpu": "resources.cpu",
    "cpus": "resources.cpu",
    "cpuspertask": "resources.cpu",
    "memory": "resources.memory",
    "mem": "resources.memory",
    "gpumemory": "resources.gpuMemory",
    "mig": "resources.mig",
    "tasks": "count",
    "ntasks": "count",
    "nodes": "count",
    "replicas": "count",
    "workers": "count",
    "args": "command",
    "cmd": "command",
    "entrypoint": "command",
    "env": "environment",
}
#: By kind and place: a key without capitals, dashes and underscores, to the path from that place.
PLACES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("Job", "spec"): {
        **_TASK,
        "name": "metadata.name",
        "labels": "metadata.labels",
        "time": "timeLimit",
        "walltime": "timeLimit",
        "activedeadlineseconds": "timeLimit",
        "partition": "pools",
        "nodepool": "pools",
        "account": "queue",
        "qos": "priorityClass",
        "cwd": "workingDirectory",
        "chdir": "workingDirectory",
        "workdir": "workingDirectory",
        "dependencies": "dependsOn",
        "dependency": "dependsOn",
        "needs": "dependsOn",
        "backofflimit": "retries.limit",
        "parallelism": "array.parallelism",
        "gracetime": "checkpoint.grace",
    },
    ("Job", "spec.groups"): _TASK,
    ("Queue", "spec"): {
        "gpu": "guaranteed.gpu",
        "gpus": "guaranteed.gpu",
        "cpu": "guaranteed.cpu",
        "cpus": "guaranteed.cpu",
        "memory": "guaranteed.memory",
        "quota": "guaranteed",
        "nominalquota": "guaranteed",
        "borrowinglimit": "limit",
        "timelimit": "maxima.timeLimit",
    },
    ("NodePool", "spec"): {
        "cpu": "nodes.cpu",
        "cpus": "nodes.cpu",
        "memory": "nodes.memory",
        "gpu": "nodes.gpus.count",
        "gpus": "nodes.gpus",
        "model": "nodes.gpus.model",
        "mig": "nodes.gpus.mig",
        "replicas": "count",
        "size": "count",
    },
    ("NodePool", "spec.nodes"): {
        "gpu": "gpus.count",
        "model": "gpus.model",
        "mig": "gpus.mig",
        "cpus": "cpu",
    },
}


def plain(key: str) -> str:
    """Return a key without differences of spelling."""
    return key.lower().replace("_", "").replace("-", "")


def right_place(
    kind: str, path: yaml_reader.Path, key: str, parts: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the path of the intended field, from the top of the document. It is empty if it is
    unknown.

    Args:
        kind: of the document.
        path: of the mapping that has the key.
        key: no field of that mapping.
        parts: the fields of ``metadata`` and of ``spec``.
    """
    where = ".".join(step for step in path if isinstance(step, str))
    if where in {"", "metadata"}:
        for part, known in parts.items():
            by_plain = {plain(name): name for name in known}
            if part != where and plain(key) in by_plain:
                return f"{part}.{by_plain[plain(key)]}"
        where = "spec"
    found = PLACES.get((kind, where), {}).get(plain(key), "")
    if not found or found.startswith("metadata."):
        return found
    return f"{yaml_reader.dotted(path) if path[:1] == ('spec',) else where}.{found}"
