"""Validates a job's document under one structure: its faults, and the normalised job.

The loader uses it for documents in git, submission before that: both give the same answer.
"""

import msgspec

from reconciler.desired.checks import cross_references, feasibility, job_names, mutations, policies
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.policy import queue_paths


class JobValidator:
    """A validator of job documents under the structure ``basis``."""

    def __init__(
        self, basis: job_defaults.JobDefaults, rules: policies.PolicyRules | None = None
    ) -> None:
        """Take the structure; ``rules`` are its policies, if they were used before."""
        self._basis = basis
        self._known = job_names.of_structure(basis.structure)
        self._parents = {name: queue.parent for name, queue in basis.structure.queues.items()}
        self._fitting = feasibility.Fitting(basis.structure)
        self._rules = rules or policies.PolicyRules(basis.structure.policies)
        self._mutations = mutations.JobMutations(basis.structure, self._rules)

    @property
    def until(self) -> float:
        """The end of the first waiver in use."""
        return self._rules.until

    def by(self, basis: job_defaults.JobDefaults) -> "JobValidator":
        """Return a validator for another structure; with the same policies it keeps
        waivers in use.
        """
        same = self._basis.structure.policies == basis.structure.policies
        return JobValidator(basis, self._rules if same else None)

    def renew(self) -> None:
        """Apply the policies again after a waiver has ended."""
        self._rules = policies.PolicyRules(self._basis.structure.policies)
        self._mutations = mutations.JobMutations(self._basis.structure, self._rules)

    def job(
        self, part: job_spec.JobDocument, hashed: str, path: str, now: float
    ) -> tuple[desired.Job | None, list[Fault], list[Fault]]:
        """Return the job of a document, its faults, and its warnings.

        Args:
            part: the document. hashed: the hash of its execution fields.
            path: of its file. now: seconds since the epoch, for waivers.
        """
        mutated = self._mutations.apply(part, now)
        if mutated.faults:
            return None, list(mutated.faults), []
        if not mutated.set_fields:
            return self._job(part, hashed, path, now)
        made, faults, warnings = self._job(mutated.part, hashed, path, now)
        if made is not None:
            written, _ = job_defaults.job(part, hashed, self._basis, path)
            made = mutations.with_fields(made, written, mutated.set_fields)
        names = ", ".join(dict.fromkeys(f"policy/{one.policy}" for one in mutated.set_fields))
        return made, [_changed(one, names) for one in faults], warnings

    def _job(
        self, part: job_spec.JobDocument, hashed: str, path: str, now: float
    ) -> tuple[desired.Job | None, list[Fault], list[Fault]]:
        """Return the same of a document as policies have changed it."""
        structure = self._basis.structure
        normalised, faults = job_defaults.job(part, hashed, self._basis, path)
        unknown = job_names.unknown(job_names.of_spec(part.spec), self._known)
        if normalised is None or unknown:
            missing = job_names.missing_pools(part.spec.pools or (), structure.pools)
            return None, [*faults, *unknown], [] if missing is None else [missing]
        beyond = cross_references.of_job(normalised, structure)
        if beyond:
            return None, beyond, []
        above = queue_paths.ancestors(normalised.queue, self._parents.get)
        noted = self._rules.faults("Job", normalised.name, part, now, normalised, above=above)
        faults = [one for one in noted if one.severity == "error"]
        warnings = [one for one in noted if one not in faults]
        return normalised, faults, [*warnings, *self._fitting.warnings(normalised)]


def _changed(fault: Fault, names: str) -> Fault:
    """Return a fault of a document that policies have changed, with their names."""
    return msgspec.structs.replace(fault, message=f"{fault.message} (after changes by {names})")
