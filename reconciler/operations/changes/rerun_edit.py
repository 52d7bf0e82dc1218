"""The edit that lets a job run again, in the checkpoint folder of its run before or afresh."""

from collections.abc import Mapping
from typing import Any

from reconciler.changes import array_edits, requests, yaml_edit
from reconciler.desired.documents import document_reader
from reconciler.model.state import identifiers
from reconciler.model.values import found_values

Document = Mapping[str, Any]


def written_spec(document: Document) -> Mapping[str, Any]:
    """Return the spec of a document as written, which may be anything.

    Raises:
        ConflictError: it is not a mapping.
    """
    spec = document.get("spec")
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        raise requests.ConflictError(wrong_field(document, "spec", spec, "a mapping"))
    return spec


def wrong_field(document: Document, field: str, found: Any, expected: str) -> str:
    """Return the message about a field that has to be corrected first."""
    label = f"{document['kind']}/{document['metadata']['name']}"
    shown = found_values.quote(found)
    return f"{field} of {label}: found {shown}, expected {expected}: mend the document first"


def run_of(document: Document) -> int:
    """Return the run that a document asks for.

    Raises:
        ConflictError: it is not a whole number.
    """
    run = written_spec(document).get("run")
    if run is None:
        return 1
    if isinstance(run, bool) or not isinstance(run, int):
        raise requests.ConflictError(wrong_field(document, "spec.run", run, "a whole number"))
    return run


def run_key(document: Document) -> str:
    """Return the run that a document asks for, as ``NAME.RUN.HASH``.

    Raises:
        ConflictError: the document is not one of a job.
    """
    digest = document_reader.execution_hash(dict(written_spec(document)))
    return f"{document['metadata']['name']}.{run_of(document)}.{digest}"


class Rerun:
    """The edit of the document of a job that is to run again.

    The run goes on in the checkpoint folder of the run before, unless it is to begin afresh or the
    document names a folder itself.

    Args:
        fresh: it begins afresh.
        elements: of its array that run again; empty: all.
    """

    def __init__(self, *, fresh: bool, elements: str = "") -> None:
        self._fresh = fresh
        self._elements = elements
        #: What it makes of the job, for whoever asked; empty before it was called.
        self.says = ""

    def __call__(self, document: Document) -> requests.Fields:
        """Return the fields to set.

        Raises:
            ConflictError: the document is not one of a job, or has no such elements.
        """
        run, resumes = run_of(document), resumed_run(document)
        fields: requests.Fields = ((("spec", "run"), run + 1),)
        if self._elements:
            fields += array_edits.rerunning(document, self._elements)
        else:
            fields += array_edits.whole_run(document)
        if resumes and not self._fresh:
            name, number, _ = resumes.split(".")
            of_job = "" if name == document["metadata"]["name"] else f" of {name}"
            self.says = f"from the checkpoints of run {number}{of_job} (--fresh: without)"
            return (*fields, (("spec", "resumeFrom"), resumes))
        self.says = "without earlier checkpoints" if resumes else ""
        if "resumeFrom" in written_spec(document):
            return (*fields, (("spec", "resumeFrom"), yaml_edit.REMOVED))
        return fields

    def resuming(self, document: Document) -> str:
        """Return what to add to the message about a job that runs again.

        Raises:
            ConflictError: the document is not one of a job, or has no such elements.
        """
        self(document)
        return f", {self.says}" if self.says else ""


def resumed_run(document: Document) -> str:
    """Return the run in whose checkpoint folder the next run of a document goes on, as
    ``NAME.RUN.HASH``; empty: it has no folder that is named after a run.
    """
    spec = written_spec(document)
    checkpoint = spec.get("checkpoint")
    if not isinstance(checkpoint, Mapping) or checkpoint.get("path"):
        return ""
    found = spec.get("resumeFrom")
    if isinstance(found, str) and identifiers.RUN_KEY.fullmatch(found):
        return found
    return run_key(document)
