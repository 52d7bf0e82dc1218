"""Normalises when a job may start, by when it must end, and on which nodes it may start by name."""

import msgspec

from reconciler.desired.documents.faults import FaultCollector
from reconciler.desired.normalise import pools
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.values import found_values, times

#: The most nodes that a job can name, and characters of their names: each record keeps them.
HOSTS_MAX, HOST_CHARACTERS_MAX = 1024, 16_384


def with_start(job: desired.Job, spec: job_spec.JobSpec, faults: FaultCollector) -> desired.Job:
    """Return the job with its moments and its nodes, and note what can't be."""
    written = (spec.deadline, spec.not_before, spec.hosts, spec.exclude_hosts)
    if all(one is None for one in written):  # most jobs
        return job
    job = msgspec.structs.replace(
        job,
        deadline=_moment(spec.deadline, "deadline", faults),
        not_before=_moment(spec.not_before, "notBefore", faults),
        hosts=_hosts(spec.hosts, "hosts", faults),
        exclude_hosts=_hosts(spec.exclude_hosts, "excludeHosts", faults),
    )
    if job.deadline is not None and job.not_before is not None and job.not_before >= job.deadline:
        faults.add(
            "never-in-time",
            "it may not start before its deadline: make notBefore earlier, or deadline later",
            *("spec", "notBefore"),
            found=found_values.quote(spec.not_before),
            expected=f"a time before {spec.deadline}",
        )
    if job.hosts and not set(job.hosts) - set(job.exclude_hosts):
        faults.add(
            "no-hosts",
            "excludeHosts names all nodes of hosts: leave one that it may use",
            *("spec", "excludeHosts"),
            found=found_values.quote(spec.exclude_hosts),
        )
    return job


def _hosts(written: str | None, field: str, faults: FaultCollector) -> tuple[str, ...]:
    """Return names of nodes, in order; a fault if there are more than a job can have."""
    if written is None:
        return ()
    found = pools.expand(written, faults, "spec", field)
    characters = sum(map(len, found))
    if len(found) <= HOSTS_MAX and characters <= HOST_CHARACTERS_MAX:
        return tuple(sorted(found))
    faults.add(
        "too-many-hosts",
        "a job can't name so many nodes: say it by `pools` or `nodeSelector`",
        *("spec", field),
        found=f"{len(found)} names of {characters} characters",
        expected=f"at most {HOSTS_MAX} names of {HOST_CHARACTERS_MAX} characters",
    )
    return ()


def _moment(written: str | None, field: str, faults: FaultCollector) -> float | None:
    """Return a time in seconds since the epoch; None and a fault if it is none."""
    if written is None:
        return None
    try:
        return times.parse_time(written)
    except ValueError as error:
        why = f": {error}" if isinstance(error, times.OffsetError) else ""
        faults.add(
            "bad-time",
            f"this is not a time{why}",
            *("spec", field),
            found=found_values.quote(written),
            expected=f"a time such as {times.EXAMPLE}",
        )
        return None
