"""Whether a job's document can be in force under one structure: its faults, and what it is then.

The loader asks of what is written in git, and whoever submits a job before it is: both are told the
same.
"""

from reconciler.desired.checks import cross_references, feasibility, policies
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.documents import job_spec


class JobValidator:
    """What documents of jobs are measured by, as long as the structure is ``basis``."""

    def __init__(
        self, basis: job_defaults.JobDefaults, rules: policies.PolicyRules | None = None
    ) -> None:
        """``rules``: the policies of this structure, where they have judged before."""
        self._basis = basis
        self._fitting = feasibility.Fitting(basis.structure)
        self._rules = rules or policies.PolicyRules(basis.structure.policies)

    @property
    def until(self) -> float:
        """When the first waiver ends that lets something off."""
        return self._rules.until

    def by(self, basis: job_defaults.JobDefaults) -> "JobValidator":
        """A judge by another structure; of the same policies it goes on knowing which waivers
        let something off, whatever of that is judged anew."""
        same = self._basis.structure.policies == basis.structure.policies
        return JobValidator(basis, self._rules if same else None)

    def renew(self) -> None:
        """A waiver has ended: rules are applied anew."""
        self._rules = policies.PolicyRules(self._basis.structure.policies)

    def job(
        self, part: job_spec.JobDocument, hashed: str, path: str, now: float
    ) -> tuple[desired.Job | None, list[Fault], list[Fault]]:
        """What a document makes, what is wrong with it, and what is only to be said of it.

        Args:
            part: the document. hashed: the hash of what it executes.
            path: of its file. now: seconds since the epoch, for waivers.
        """
        made, faults = job_defaults.job(part, hashed, self._basis, path)
        if made is None:
            return None, list(faults), []
        unknown = cross_references.of_job(made, self._basis.structure)
        if unknown is not None:
            return None, [unknown], []
        noted = self._rules.faults("Job", made.name, part, now, made)
        faults = [one for one in noted if one.severity == "error"]
        warnings = [one for one in noted if one not in faults]
        return made, faults, [*warnings, *self._fitting.warnings(made)]
