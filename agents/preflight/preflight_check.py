"""Runs all checks of ``muster agent --check`` and prints their findings. Leaves nothing behind."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agents import settings
from agents.gpus import nvml_client, samples
from agents.host import host_info
from agents.preflight import gpu_findings, host_findings, option_findings, task_findings
from agents.preflight.finding import FAILED, PreflightFinding, PreflightReport
from reconciler.model.values import log_lines


def main(given: argparse.Namespace) -> int:
    """Print the findings. Return 0 if a node can run here, else 1."""
    for name, value in vars(given).items():
        if isinstance(value, Path):  # trying out isolation changes this process's folder
            setattr(given, name, value.absolute())
    source = nvml_client.NvmlClient()
    sample = None if given.gpus == "none" else source.sample(usage=False)
    source.close()
    found = list(findings(given, sample))
    report = PreflightReport(all(finding.level != FAILED for finding in found), found)
    if given.output == "json":
        text = msgspec.json.format(msgspec.json.encode(report)).decode()
        sys.stdout.write(log_lines.escape_json(text) + "\n")
    else:
        for finding in found:
            do = f". {finding.do}" if finding.do else ""
            line = f"{finding.level:<8}{finding.name:<14}{finding.found}{do}"
            sys.stdout.write(log_lines.escape(line) + "\n")
        verdict = (
            "A node can run on this host."
            if report.ok
            else "No node can run on this host yet: fix the lines marked `failed`."
        )
        sys.stdout.write(f"{verdict}\n")
    return 0 if report.ok else 1


def findings(
    given: argparse.Namespace, sample: samples.Sample | None, top: Path = Path("/")
) -> Iterator[PreflightFinding]:
    """Yield all findings.

    Args:
        sample: what the GPU driver reports; None if GPUs are not checked.
        top: folder that contains ``/proc``, ``/sys`` and the like.
    """
    yield from host_findings.system(top)
    yield host_findings.user(os.geteuid())
    yield from option_findings.options(given)
    yield from host_findings.folder(given.root)
    yield from host_findings.quotas(given.root)
    yield from gpu_findings.gpus(sample, top, simulated=given.simulated_gpus)
    if sample is not None:
        yield from gpu_findings.chosen(sample, settings.chosen_gpus(given))
    yield from task_findings.isolation(top)
    yield from task_findings.privileges(top)
    yield from task_findings.runtimes(os.environ.get("PATH", os.defpath), top)
    if sample is not None and sample.devices:
        yield gpu_findings.sharing()
    yield task_findings.data()
    yield from task_findings.folders(given.root, given.shared)
    host = host_info.read(top)
    yield from host_findings.machine(host)
    yield host_findings.tables(host.cpus, top)
    yield host_findings.shared_memory(top)
    yield from option_findings.controller(given)
    yield from option_findings.address(given)
    yield from option_findings.metrics_port(given)
    yield from option_findings.secrets(given.secrets)
