"""One node on a terminal: facts, a table of GPUs, and GPU processes that belong to no task."""

from collections.abc import Mapping
from typing import Any

from reconciler.cli import terminal

Json = Any

#: After the name of a pool in mode `observe`.
OBSERVED = " (mode observe: nothing is started here)"


def busy(item: Json) -> str:
    """Return the mean utilization of a node's GPUs as `63% busy`, or an empty string if it is
    unknown.
    """
    utilizations = [
        gpu["usage"]["utilization"]
        for gpu in item["gpus"]
        if gpu.get("usage") and gpu["usage"]["utilization"] is not None
    ]
    return f"{100 * sum(utilizations) / len(utilizations):.0f}% busy" if utilizations else ""


def offered(item: Json, pools: Mapping[str, Json]) -> Json:
    """Return what tasks may take of a node, by resource; what it has where no pool says it.

    Args:
        item: the node, of the API.
        pools: by name; an older controller does not send what they offer.
    """
    has: Json = item.get("capacity") or {}
    declared: Json = pools.get(item.get("pool") or "", {}).get("offered")
    if not declared:
        return has
    # devices that are cut into instances are declared, and not taken as a whole
    return {**declared, "gpu": min(declared.get("gpu", 0), has.get("gpu", 0))}


def show(
    item: Json, offers: Json | None = None, *, is_observed: bool = False, reserved: str = ""
) -> None:
    """Print a node.

    Args:
        item: of the API.
        offers: what tasks may take of it, by resource; None: all.
        is_observed: True if its pool is in mode `observe`.
        reserved: what keeps the node, now or later.
    """
    driver = item.get("gpuDriver")
    facts = [
        ("Node", item["name"]),
        ("Pool", (item.get("pool") or "-") + (OBSERVED if is_observed else "")),
        ("State", item["state"]),
        ("Message", terminal.format_clocks(item.get("message") or "")),
        ("Reserved", reserved),
        ("Notice", item.get("notice") or ""),
        ("Address", item["address"]),
        ("CPUs", _offered_of(item, offers, "cpu")),
        ("Memory", _offered_of(item, offers, "memory")),
        ("Reported", terminal.format_clock(item["lastReport"]) if item["lastReport"] else "never"),
        ("Driver", _driver(driver, item["gpus"]) if driver else ""),
    ]
    for title, text in facts:
        if text:
            terminal.print_line(f"{title:<10}{text}", 10)
    if item["gpus"]:
        terminal.out.print()
        headings = ["GPU", "MODEL", "STATE", "BUSY", "MEMORY", "WATTS", "TEMP", "TASK", "NOTES"]
        rows = [row for gpu in item["gpus"] for row in (_row(gpu), *_parts(gpu))]
        terminal.print_table(headings, rows, right="GPU BUSY MEMORY WATTS TEMP", middle="TASK")
        for indexes, message in _layout_messages(item["gpus"]):
            several = "s" if len(indexes) > 1 else ""
            text = f"GPU{several} {_ranges(indexes)}, MIG layout: {message}"
            terminal.out.print(text, markup=False, soft_wrap=True)
    if item["volumes"]:
        terminal.out.print()
        rows = [
            [one["name"], terminal.format_clocks(one["problem"]) or "ok"] for one in item["volumes"]
        ]
        terminal.print_table(["VOLUME", "STATE"], rows)
    _print_strangers(item.get("foreignGpuProcesses") or [])


def _print_strangers(processes: list[Json]) -> None:
    """Print the GPU processes that belong to no task, if there are any."""
    if not processes:
        return
    terminal.out.print()
    terminal.out.print("GPU processes that belong to no task:", markup=False)
    rows = [
        [str(p["gpu"]), str(p["pid"]), p["name"] or "-", p["user"] or "-", _gib(p["memory"])]
        for p in processes
    ]
    terminal.print_table(["GPU", "PID", "PROGRAM", "USER", "MEMORY"], rows, right="GPU PID MEMORY")


def _driver(driver: Json, gpus: Json) -> str:
    if driver["state"] == "ok" and gpus and all(gpu["simulated"] for gpu in gpus):
        return f"simulated, as {driver['version']}" if driver["version"] else "simulated"
    if driver["state"] != "ok" or not driver["version"]:
        return f"{driver['state']}: {driver['message']}"
    cuda = f", CUDA {driver['cudaVersion']}" if driver["cudaVersion"] else ""
    return f"{driver['version']}{cuda}"


def _offered_of(item: Json, offers: Json | None, resource: str) -> str:
    """Return what tasks may take of a node, and what it has if that is something else."""
    has = item["capacity"][resource]
    given = has if offers is None else offers.get(resource, has)
    shown, there = (_gib(one) if resource == "memory" else f"{one:g}" for one in (given, has))
    return shown if shown == there else f"{shown} for tasks, as its pool declares; it has {there}"


def _gib(amount: int | None) -> str:
    return "-" if amount is None else f"{amount / 2**30:.3g}Gi"


def _state(gpu: Json) -> str:
    if not gpu["simulated"]:
        return str(gpu["state"])
    return "simulated" if gpu["state"] == "ok" else f"simulated, {gpu['state']}"


def _layout_messages(gpus: Json) -> list[tuple[list[int], str]]:
    """Return each message about MIG layouts once, with the GPUs it is about."""
    found: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu["migLayout"] and gpu["migLayout"]["message"]:
            found.setdefault(gpu["migLayout"]["message"], []).append(gpu["index"])
    return [(indexes, message) for message, indexes in found.items()]


def _ranges(indexes: list[int]) -> str:
    """Return numbers in order, with consecutive ones as a range: `0-3, 6`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and index == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _row(gpu: Json) -> list[str]:
    usage = gpu.get("usage") or {}
    share, watts, celsius = (usage.get(k) for k in ("utilization", "powerW", "temperatureC"))
    used = usage.get("memoryUsed")
    memory = _gib(gpu["memory"]) if used is None else f"{_gib(used)}/{_gib(gpu['memory'])}"
    return [
        str(gpu["index"]),
        gpu["model"],
        _state(gpu),
        "-" if share is None else f"{100 * share:.0f}%",
        memory,
        "-" if watts is None else f"{watts:.0f}",
        "-" if celsius is None else f"{celsius:.0f}",
        gpu.get("attempt") or "-",
        "; ".join(_notes(gpu, usage)),
    ]


def _parts(gpu: Json) -> list[list[str]]:
    """Return a row for each MIG instance of a GPU."""
    return [
        [
            f"{gpu['index']}:{part['gpuInstance']}",
            f"MIG {part['profile']}",
            _state(gpu),
            "-",
            _gib(part["memory"])
            if part["memoryUsed"] is None
            else f"{_gib(part['memoryUsed'])}/{_gib(part['memory'])}",
            "-",
            "-",
            part["attempt"] or "-",
            "",
        ]
        for part in gpu["mig"]
    ]


def _notes(gpu: Json, usage: Json) -> list[str]:
    """Return remarks about a GPU besides its numbers."""
    notes = [gpu["message"]] if gpu["message"] else []
    if gpu["migLayout"] and gpu["migLayout"]["state"] != "fits":
        notes.append(f"MIG {gpu['migLayout']['state']}")
    if gpu["mps"]:
        notes.append("MPS")
    if usage.get("foreignProcesses"):
        count = usage["foreignProcesses"]
        notes.append(f"{count} foreign process{'' if count == 1 else 'es'}")
    if usage.get("eccUncorrected"):
        notes.append(f"{usage['eccUncorrected']} uncorrected ECC errors")
    slowed = [r for r in usage.get("clockEventReasons") or () if "slowdown" in r]
    notes += [f"clocks: {reason}" for reason in slowed]
    notes += [f"XID {xid['number']} x{xid['count']}" for xid in usage.get("xids") or ()]
    return notes
