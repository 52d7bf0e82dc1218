"""Traces of shared and whole GPUs: nodes and tasks from CSV files, in the form of
Alibaba's cluster-trace-gpu-v2023.

Nodes have ``cpu_milli``, ``memory_mib``, ``gpu`` (devices) and ``model``; tasks ``cpu_milli``,
``memory_mib``, ``num_gpu``, ``gpu_milli`` (of each device) and ``gpu_spec`` (models that are
allowed, ``A|B``; empty: any). Columns are found by name, in any order; without ``model``,
``gpu_spec``, ``gpu_milli`` or ``memory_mib`` all nodes are alike, all are allowed, devices are
whole, and memory does not count. Rows that can't be read are left out, counted and named.
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.peers.placement import Cluster, Kind
from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import WHOLE

MIB = 2**20
#: Rows left out that are named.
NAMED_MAX = 5

Row = dict[str, str]
T = TypeVar("T")


class Asked(NamedTuple):
    """One task: milli-CPUs, MiB, devices, milli-GPUs of each, models."""

    cpu: int
    memory: int
    devices: int
    share: int
    models: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Nodes and tasks.

    Attributes:
        node_class: (n,) index into the models.
        capacity: (n, 3) milli-CPUs, bytes of memory, milli-GPUs.
        kinds: tasks that are alike as one.
        kind_of: (t,) kind of each task.
    """

    node_class: NDArray[np.intp]
    capacity: NDArray[np.int64]
    kinds: tuple[Kind, ...]
    kind_of: NDArray[np.intp]

    def empty(self) -> Cluster:
        """The cluster before anything came."""
        count = self.capacity[:, 2] // WHOLE
        width = int(count.max())
        devices = np.where(np.arange(width) < count[:, None], WHOLE, -1)
        cpu, memory = self.capacity[:, 0].copy(), self.capacity[:, 1].copy()
        return Cluster(self.node_class, cpu, memory, devices, self.capacity)


def read(nodes: Path, pods: Path) -> Trace:
    """The trace of two CSV files.

    Raises:
        RuntimeError: a file can't be read, lacks a column, or has nothing that can be used.
    """
    return of_rows(
        _rows(nodes, "--nodes", {"cpu_milli", "gpu"}),
        _rows(pods, "--pods", {"cpu_milli", "num_gpu"}),
        (str(nodes), str(pods)),
    )


def of_rows(
    nodes: list[tuple[int, Row]],
    pods: list[tuple[int, Row]],
    names: tuple[str, str] = ("nodes", "tasks"),
) -> Trace:
    """The trace of rows with their line numbers; all rows of a table have the same columns.

    Raises:
        RuntimeError: there is nothing that can be used.
    """
    has_memory = all(rows and "memory_mib" in rows[0][1] for rows in (nodes, pods))

    def node(row: Row) -> tuple[int, int, int, str]:
        memory = _number(row, "memory_mib") if has_memory else 0
        return (
            _number(row, "cpu_milli"),
            memory,
            _number(row, "gpu"),
            row.get("model") or "",
        )

    def task(row: Row) -> Asked:
        devices = _number(row, "num_gpu")
        share = _number(row, "gpu_milli") if "gpu_milli" in row else WHOLE
        if devices and not 0 < share <= WHOLE:
            raise ValueError(f"gpu_milli is {share}, expected 1 to {WHOLE}")
        memory = _number(row, "memory_mib") if has_memory else 0
        spec = row.get("gpu_spec") or ""
        return Asked(_number(row, "cpu_milli"), memory, devices, share if devices else 0, spec)

    have = _read(names[0], nodes, node)
    asked = _read(names[1], pods, task)
    if not any(gpu for _, _, gpu, _ in have) or not any(one.devices for one in asked):
        raise RuntimeError(
            f"{names[0]}, {names[1]}: expected nodes with GPUs and tasks that ask for some; found "
            f"{len(have)} nodes and {len(asked)} tasks that can be read, none of them such"
        )
    models = sorted({model for *_, model in have})
    distinct = sorted(set(asked))
    number = {kind: at for at, kind in enumerate(distinct)}
    return Trace(
        np.array([models.index(model) for *_, model in have], dtype=np.intp),
        np.array([(cpu, mib * MIB, gpu * WHOLE) for cpu, mib, gpu, _ in have], dtype=np.int64),
        tuple(_kind(at, kind, models) for at, kind in enumerate(distinct)),
        np.array([number[one] for one in asked], dtype=np.intp),
    )


def _kind(at: int, asked: Asked, models: list[str]) -> Kind:
    allowed = asked.models.split("|") if asked.models else models
    group = snapshots.TaskGroupShape(
        f"kind-{at}",
        1,
        (asked.cpu, asked.memory * MIB, asked.devices * asked.share),
        devices=asked.devices,
        share=asked.share or WHOLE,
    )
    return Kind(group, np.array([model in allowed for model in models], dtype=np.bool_))


def _rows(path: Path, option: str, needed: set[str]) -> list[tuple[int, Row]]:
    """(line number, row) of each row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            columns = set(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RuntimeError(f"{path}: {error}; name the trace's file with {option}") from error
    if not needed <= columns:
        raise RuntimeError(
            f"{path}: columns {sorted(needed - columns)} are missing; found {sorted(columns)}"
        )
    return rows


def _number(row: Row, column: str) -> int:
    text = row[column]
    try:
        found = int(text)
    except (TypeError, ValueError):
        raise ValueError(f"{column} is {text!r}, expected a whole number") from None
    if found < 0:
        raise ValueError(f"{column} is {found}, expected 0 or more")
    return found


def _read(name: str, rows: list[tuple[int, Row]], one: Callable[[Row], T]) -> list[T]:
    found: list[T] = []
    wrong: list[str] = []
    for line, row in rows:
        try:
            found.append(one(row))
        except ValueError as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        more = ["..."] if len(wrong) > NAMED_MAX else []
        named = "; ".join(wrong[:NAMED_MAX] + more)
        print(f"{name}: {len(wrong)} rows left out: {named}", file=sys.stderr)
    return found
