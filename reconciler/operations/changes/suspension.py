"""Suspending and resuming: ``spec.suspend`` of the cluster or a queue, in a clone or a controller.

Jobs are held and released by the same field.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from reconciler.changes import array_edits, requests, yaml_edit
from reconciler.changes.clone import working_clone

Verb = Literal["suspend", "resume"]
_KINDS = {"cluster": "Cluster", "queue": "Queue", "job": "Job"}


class SubjectError(requests.ConflictError):
    """Error: a text names nothing that can be suspended."""


def parse(subject: str) -> tuple[str, str]:
    """Return kind and name of ``cluster`` or ``queue/NAME``; the name of the cluster is empty.

    Raises:
        SubjectError: it is neither.
    """
    kind, name = parse_with_jobs(subject)
    if kind == "Job":
        raise SubjectError(
            f"{subject}: expected cluster, queue/NAME; jobs are held instead: `muster hold {name}`"
        )
    return kind, name


def parse_with_jobs(subject: str) -> tuple[str, str]:
    """Return kind and name of ``cluster``, ``queue/NAME`` or ``job/NAME``.

    Raises:
        SubjectError: it is none of them.
    """
    word, _, name = subject.partition("/")
    kind = _KINDS.get(word.lower())
    if kind is None or (kind != "Cluster") is not bool(name):
        raise SubjectError(
            f"{subject}: expected cluster, queue/NAME or job/NAME{_meant(word.lower(), name)}"
        )
    return kind, name


def _meant(word: str, name: str) -> str:
    """Return a hint of what a wrong subject should be; empty if it gives no clue.

    Args:
        word: before the slash, in small letters. name: after it.
    """
    near = difflib.get_close_matches(word, _KINDS, n=1, cutoff=0.7)
    if near and near[0] == "cluster":
        return "; did you mean cluster?"
    if near and name:
        return f"; did you mean {near[0]}/{name}?"
    if name.strip() and word.startswith("node"):
        return "; nodes are drained: `muster drain NODE`"
    return "" if near or name or not word else f"; did you mean queue/{word} or job/{word}?"


def canonical(subject: str) -> str:
    """Return the only form of a subject, as overrides have it: ``cluster`` or ``queue/NAME``.

    Raises:
        SubjectError: it is neither.
    """
    kind, name = parse(subject)
    return f"{kind.lower()}/{name}" if name else kind.lower()


def fields(verb: str) -> requests.Fields:
    """Return the fields to set in the document."""
    return ((("spec", "suspend"), True if verb == "suspend" else yaml_edit.REMOVED),)


def put(
    clone: working_clone.Clone, subject: str, reason: str, *, verb: Verb, dry_run: bool = False
) -> working_clone.CloneOutcome:
    """Commit that something is suspended or not, and push.

    Raises:
        ConflictError: there is no such thing.
        CloneError, EditError: git refuses, or the document can't be changed.
    """
    kind, name = parse(subject)
    if not name:
        names = clone.files.names(kind)
        if not names:
            raise requests.ConflictError(
                f"there is no Cluster in {clone.state}: write one, with `suspend: true`"
            )
        name = names[0]
    message = f"{verb.capitalize()} {kind}/{name}" + (f": {reason}" if reason else "")
    return clone.set_fields(kind, name, fields(verb), message=message, dry_run=dry_run)


def hold_fields(document: Mapping[str, Any], reason: str) -> requests.Fields:
    """Return the fields to set in the document of a job that is held, with the reason if there is
    one.

    Return none if it is held already and no other reason is given: the first reason stays.
    """
    spec = document.get("spec")
    if not reason and isinstance(spec, Mapping) and spec.get("suspend") is True:
        return ()
    return (
        (("spec", "suspend"), True),
        (("spec", "suspendReason"), reason or yaml_edit.REMOVED),
    )


def release_fields(document: Mapping[str, Any]) -> requests.Fields:
    """Return what leaves the document of a job that is released, with all its elements."""
    return (
        (("spec", "suspend"), yaml_edit.REMOVED),
        (("spec", "suspendReason"), yaml_edit.REMOVED),
        *array_edits.all_released(document),
    )
