"""Validates a job's document under one structure: its faults, and the normalised job.

The loader uses it for documents in git, submission before that: both give the same answer.
"""

from reconciler.desired.checks import cross_references, feasibility, job_names, policies
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

    def job(
        self, part: job_spec.JobDocument, hashed: str, path: str, now: float
    ) -> tuple[desired.Job | None, list[Fault], list[Fault]]:
        """Return the job of a document, its faults, and its warnings.

        Args:
            part: the document. hashed: the hash of its execution fields.
            path: of its file. now: seconds since the epoch, for waivers.
        """
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
