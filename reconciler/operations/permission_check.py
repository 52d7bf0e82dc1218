"""What ``muster access can`` answers: the decision that loader and server would come to."""

from pathlib import Path
from typing import get_args

from reconciler.changes.clone import working_clone
from reconciler.model import desired
from reconciler.model.documents import kinds
from reconciler.model.policy import access
from reconciler.model.values import suggestions
from reconciler.operations.validate import folder_check, object_folders


class QuestionError(ValueError):
    """There is no such verb or object, or nobody can tell; says which there are, or why."""


class WordsError(QuestionError):
    """It is no question at all, whatever objects there are."""


def folder_around(here: Path) -> Path:
    """Where the desired state begins of the cluster that somebody stands in: roles count as a
    whole, and the folder of the jobs, say, holds none of them.

    Raises:
        QuestionError: it is in no clone, or in one of several clusters.
    """
    try:
        return object_folders.clone_of(here, None, None).state
    except working_clone.CloneError as error:
        raise QuestionError(f"{error}; or name the folder with --folder") from None


def structure_of(found: desired.Desired) -> desired.Structure:
    """The structure that a folder writes, which answers may be given by.

    Raises:
        QuestionError: there is none, or it is refused: of roles that can't be read nobody knows
            what they allow.
    """
    for one in found.status.problems:
        if one.rule == folder_check.NOTHING_WRITTEN:
            raise QuestionError(f"nobody can tell by what stands here: {one.message}")
    errors = [one for one in found.status.problems if one.severity == "error"]
    if errors and found.status.structure_revision is None:
        raise QuestionError(
            f"nobody can tell by what stands here, since its structure is refused: "
            f"{errors[0].text()}; `muster validate` prints all that is wrong"
        )
    return found.structure


def can(structure: desired.Structure, who: str, verb: str, subject: str) -> access.Decision:
    """Whether somebody may do something.

    Args:
        structure: with access and queues.
        who: an address.
        verb: one of ``access.Verb``.
        subject: ``Queue/name`` for jobs, ``Kind/name`` for structural objects.

    Raises:
        WordsError: the verb is none, or is of no use for the subject.
        QuestionError: there is no such queue.
    """
    verbs: dict[str, access.Verb] = {one: one for one in get_args(access.Verb)}
    known = verbs.get(verb)
    if known is None:
        raise WordsError(
            f"there is no verb {verb}{suggestions.hint(verb, verbs)}; there are {', '.join(verbs)}"
        )
    if known == "approve":
        return access.of_approval(structure.access, who)
    if known == "snapshot":
        return access.of_snapshot(structure.access, who)
    kind, slash, name = subject.partition("/")
    if not slash or not name:
        raise WordsError(f"{verb} what? give Kind/name, such as Queue/default")
    if known in {"submit", "manage"}:
        if kind != "Queue":
            raise WordsError(f"jobs are put into queues: {verb} Queue/NAME, not {subject}")
        if name not in structure.queues:
            raise QuestionError(
                f"there is no queue {name}{suggestions.hint(name, structure.queues)}"
            )
        parents = {queue.name: queue.parent for queue in structure.queues.values()}
        above = access.ancestors(name, parents)
        return access.of_queue(structure.access, who, known, name, above)
    if kind not in kinds.STRUCTURAL_KINDS:
        hint = suggestions.hint(kind, sorted(kinds.STRUCTURAL_KINDS))
        there = ", ".join(sorted(kinds.STRUCTURAL_KINDS))
        raise WordsError(f"there is no kind {kind} that rules are about{hint}; there are {there}")
    if known == "drain" and kind != "NodePool":
        raise WordsError(f"nodes of pools are drained: drain NodePool/NAME, not {subject}")
    return access.of_object(structure.access, who, known, subject)
