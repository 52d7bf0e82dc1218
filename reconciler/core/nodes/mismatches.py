"""Differences between a node and its pool's declaration, with evidence.

Health reads them, because a node that has less or other takes no work, and drift lists them. A node
may have more than its pool declares.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from reconciler.core.nodes import device_locality
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.observed.devices import INNER_LEVELS, INNER_WORDS
from reconciler.model.state import records
from reconciler.model.values import quantities


class Mismatch(msgspec.Struct, frozen=True):
    """A difference; ``kind`` is one of ``drift_kinds``, ``subject`` a part of the node."""

    kind: str
    message: str
    wanted: str
    found: str
    subject: str = ""


def find_mismatches(inventory: records.Inventory, pool: desired.Pool) -> list[Mismatch]:
    """Return every difference that keeps work off the node."""
    return [
        *_amounts(inventory, pool),
        *_devices(inventory, pool),
        *_near(inventory, pool),
        *_driver(inventory, pool),
    ]


def layouts(inventory: records.Inventory, pool: desired.Pool) -> Iterator[Mismatch]:
    """Return devices whose MIG layout differs from the declared one.

    The rest of the node takes work; only what is not as declared is not given away.
    """
    wanted = {layout.device: layout.instances for layout in pool.mig}
    for gpu in inventory.gpus:
        needed = 0 <= 1000 * gpu.index < pool.node_resources.gpu_milli
        if not needed or not unmade(gpu, wanted):
            continue
        found = Counter(one.profile for one in gpu.mig).items() if gpu.mig_enabled else None
        expected, actual = _cut(wanted.get(gpu.index)), _cut(found)
        why = gpu.cut.message if gpu.cut is not None else ""
        message = f"GPU {gpu.index} ({gpu.uuid}) is {actual}, {expected} declared"
        subject = f"gpu{gpu.index}"
        yield Mismatch(
            "node-mig", f"{message}: {why}" if why else message, expected, actual, subject
        )


def unmade(gpu: records.Gpu, wanted: Mapping[int, tuple[tuple[str, int], ...]]) -> bool:
    """Return True if a device does not have the MIG layout of its number in ``wanted``.

    Simulated instances exist as soon as they are declared.
    """
    instances = wanted.get(gpu.index)
    if instances is None or not gpu.mig_enabled:
        return gpu.mig_enabled or (instances is not None and not gpu.simulated)
    return Counter(one.profile for one in gpu.mig) != Counter(dict(instances))


def _cut(instances: Iterable[tuple[str, int]] | None) -> str:
    """Return a device's MIG layout as text."""
    if instances is None:
        return "whole"
    return ", ".join(f"{count} x {name}" for name, count in sorted(instances)) or "split into none"


def labels(inventory: records.Inventory, pool: desired.Pool) -> Iterator[Mismatch]:
    """Return labels of an agent whose value differs from its pool's.

    The pool's value counts, so they keep no work away.
    """
    for name, found in sorted(inventory.labels.items()):
        wanted = pool.labels.get(name, found)
        if wanted != found:
            yield Mismatch(
                "node-labels",
                f"its agent was started with --label {name}={found}, the pool says {wanted}",
                f"{name}={wanted}",
                f"{name}={found}",
                name,
            )


def held(attempt: records.AttemptRecord, pool: desired.Pool) -> Mismatch | None:
    """Return GPUs that a task holds and that its node's pool does not declare, or no more.

    Devices are given out by number from 0, and instances by profile, so such a task ran before the
    pool was declared with fewer.
    """
    kind, profile = "task-gpu-undeclared", attempt.mig_profile
    declared = pool.node_resources.gpu_milli // 1000
    beyond = [device for device in attempt.devices if device >= declared]
    if beyond:
        found, wanted = _gpus(beyond), _gpus(range(declared))
        message = (
            f"it holds {found} of {attempt.node}, and pool {pool.name} declares {wanted} on each "
            "node"
        )
        return Mismatch(kind, message, wanted, found)
    of_profile = [dict(layout.instances).get(profile, 0) for layout in pool.mig]
    beyond = [number for number in attempt.instances if number >= sum(of_profile)]
    if beyond:
        wanted = f"{quantities.counted(sum(of_profile), 'MIG instance')} of {profile}"
        several = "s" if len(beyond) > 1 else ""
        found = f"MIG instance{several} {_numbers(beyond)} of {profile}"
        message = (
            f"it holds {found} on {attempt.node}, and pool {pool.name} declares {wanted} on each "
            "node"
        )
        return Mismatch(kind, message, wanted, found)
    return None


def _gpus(numbers: Sequence[int]) -> str:
    """Return ``no GPU``, ``GPU 0``, ``GPUs 0 and 1``, or for many ``GPUs 0 to 7``."""
    ordered = sorted(numbers)
    if len(ordered) < 2:
        return f"GPU {ordered[0]}" if ordered else "no GPU"
    if len(ordered) > 3 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"GPUs {ordered[0]} to {ordered[-1]}"
    return f"GPUs {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def _numbers(found: Iterable[int]) -> str:
    return ",".join(map(str, sorted(found)))


def _amounts(inventory: records.Inventory, pool: desired.Pool) -> Iterator[Mismatch]:
    capacity, declared = inventory.capacity, pool.node_resources
    gpu_milli = _gpu_milli(inventory)
    if capacity.cpu_milli < declared.cpu_milli:
        found = quantities.counted(capacity.cpu_milli / 1000, "CPU")
        wanted = f"{declared.cpu_milli / 1000:g}"
        yield _inventory("cpu", found, wanted)
    if capacity.memory_bytes < declared.memory_bytes:
        found = f"{quantities.short_memory(capacity.memory_bytes)} of memory"
        yield _inventory("memory", found, quantities.short_memory(declared.memory_bytes))
    # a device that is there and unusable is a difference of its own
    failed = sum(gpu.state != devices.OK for gpu in inventory.gpus)
    if gpu_milli + 1000 * failed < declared.gpu_milli:
        found = quantities.counted(gpu_milli // 1000, "GPU")
        wanted = str(declared.gpu_milli // 1000)
        yield _inventory("gpus", found, wanted)


def _gpu_milli(inventory: records.Inventory) -> int:
    """Return milli-GPUs of a node's healthy devices, whole or divided."""
    split = sum(gpu.mig_enabled and gpu.state == devices.OK for gpu in inventory.gpus)
    return inventory.capacity.gpu_milli + 1000 * split


def _inventory(subject: str, found: str, wanted: str) -> Mismatch:
    return Mismatch("node-inventory", f"{found}, {wanted} declared", wanted, found, subject)


def _devices(inventory: records.Inventory, pool: desired.Pool) -> Iterator[Mismatch]:
    """Yield unusable devices that the pool needs, and devices of another model."""
    declared = pool.node_resources.gpu_milli
    short = _gpu_milli(inventory) < declared
    # devices are given out by number from 0, so one of them may be unusable while others are spare
    needed = [gpu for gpu in inventory.gpus if 0 <= 1000 * gpu.index < declared]
    for gpu in inventory.gpus if short else needed:
        name = f"GPU {gpu.index} ({gpu.uuid})"
        if gpu.state != devices.OK:
            message = f"{name} is {gpu.state}: {gpu.message}"
            yield Mismatch("gpu-failed", message, devices.OK, gpu.state, f"gpu{gpu.index}")
        elif gpu.compute_mode == devices.PROHIBITED:
            message = f"{name} is in compute mode {devices.PROHIBITED}: no task can use it"
            yield Mismatch("gpu-failed", message, "default", devices.PROHIBITED, f"gpu{gpu.index}")
    memory_bytes = pool.gpu_memory_bytes or 0
    usable = [gpu for gpu in inventory.gpus if gpu.state == devices.OK]  # others may tell nothing
    small = [gpu for gpu in usable if gpu.memory_bytes < memory_bytes]
    if small:
        size = quantities.short_memory(small[0].memory_bytes)
        found = f"{size} of memory in GPU {small[0].index}"
        yield _inventory("gpu-memory", found, quantities.short_memory(memory_bytes))
    model = _plain_model(pool.gpu_model)
    other = [gpu for gpu in usable if model and _plain_model(gpu.model) != model]
    if other:
        found = f"GPU {other[0].index} is a {other[0].model}"
        yield _inventory("gpu-model", found, pool.gpu_model)


def _near(inventory: records.Inventory, pool: desired.Pool) -> Iterator[Mismatch]:
    """Yield devices that are near each other in another way than declared, if that is reported."""
    if not (pool.numa or pool.nvlink):
        return  # called for each report, mostly of nodes without a declaration
    declared = pool.node_resources.gpu_milli
    real = [gpu for gpu in inventory.gpus if not gpu.simulated and 1000 * gpu.index < declared]
    knows_numa = bool(real) and all(gpu.numa_node is not None for gpu in real)
    for level, wanted, found, is_told in (
        (0, pool.numa, device_locality.numa(real), knows_numa),
        (1, pool.nvlink, device_locality.nvlink(real), any(gpu.nvlinks for gpu in real)),
    ):
        if wanted and is_told and set(wanted) != set(found):
            word, expected = INNER_WORDS[level], _domains(wanted)
            actual = _domains(found) or "none"
            message = f"GPUs by {word}: {actual}, {expected} declared"
            subject = f"gpu-{INNER_LEVELS[level]}"
            yield Mismatch("node-inventory", message, expected, actual, subject)


def _domains(domains: Iterable[tuple[int, ...]]) -> str:
    """Return numbers of devices by domain, as ``0 1 | 2 3``."""
    return " | ".join(" ".join(map(str, members)) for members in domains)


def _driver(inventory: records.Inventory, pool: desired.Pool) -> Iterator[Mismatch]:
    driver = inventory.gpu_driver
    if driver is None:
        return
    short = _gpu_milli(inventory) < pool.node_resources.gpu_milli
    if driver.state != devices.OK and not inventory.gpus and short:
        message = f"NVIDIA driver {driver.state}: {driver.message}"
        yield Mismatch("node-driver", message, devices.OK, driver.state)
    elif pool.gpu_driver and driver.version and not _begins(driver.version, pool.gpu_driver):
        message = f"NVIDIA driver {driver.version}, {pool.gpu_driver} declared"
        yield Mismatch("node-driver", message, pool.gpu_driver, driver.version)


def _begins(version: str, with_: str) -> bool:
    """Return True if a version equals the other one, or refines it."""
    return f"{version}.".startswith(f"{with_.rstrip('.')}.")


def _plain_model(name: str) -> str:
    """Return a model's name without parts that drivers write differently."""
    return name.casefold().removeprefix("nvidia ").strip()
