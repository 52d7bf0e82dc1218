"""Permission checks of ``muster access can``: the same decision as loader and server make."""

from pathlib import Path
from typing import get_args

from reconciler.changes.clone import files
from reconciler.model import desired
from reconciler.model.documents import kinds
from reconciler.model.policy import access, queue_paths
from reconciler.model.values import suggestions
from reconciler.operations.validate import folder_check, object_folders


class QuestionError(ValueError):
    """Error: an object does not exist, or the answer is unknown; the message says which or why."""


class WordsError(QuestionError):
    """Error: the question makes no sense, whatever objects there are."""


def folder_around(here: Path) -> Path:
    """Return the root of the desired state around a folder. Roles count as a whole there.

    Raises:
        QuestionError: the folder is in no clone, or in one with several clusters.
    """
    try:
        return object_folders.clone_of(here, None, None).state
    except files.CloneError as error:
        raise QuestionError(f"{error}; or name the folder with --folder") from None


def structure_of(found: desired.Desired) -> desired.Structure:
    """Return the structure of a folder.

    Raises:
        QuestionError: there is none, or it is refused: nobody knows what unreadable roles allow.
    """
    for one in found.status.problems:
        if one.rule == folder_check.NOTHING_WRITTEN:
            raise QuestionError(f"permissions can't be checked here: {one.message}")
    errors = [one for one in found.status.problems if one.severity == "error"]
    if errors and found.status.structure_revision is None:
        raise QuestionError(
            "permissions can't be checked, because the structure here is refused: "
            f"{errors[0].text()}; `muster validate` prints all mistakes"
        )
    return found.structure


def can(structure: desired.Structure, who: str, verb: str, subject: str) -> access.Decision:
    """Return the decision if a person may do something.

    Args:
        structure: with access and queues.
        who: an address.
        verb: one of ``access.Verb``.
        subject: ``Queue/name`` for jobs, ``Kind/name`` for structural objects, an address for
            ``impersonate``.

    Raises:
        WordsError: the verb does not exist, or does not apply to the subject.
        QuestionError: there is no such queue.
    """
    verbs: dict[str, access.Verb] = {one: one for one in get_args(access.Verb)}
    known = verbs.get(verb)
    if known is None:
        raise WordsError(
            f"there is no verb {verb}{suggestions.hint(verb, verbs)}; known: {', '.join(verbs)}"
        )
    if known == "approve":
        return access.of_approval(structure.access, who)
    if known == "snapshot":
        return access.of_snapshot(structure.access, who)
    if known == "impersonate":
        if not subject or "/" in subject:
            raise WordsError("impersonate whom? give an address, such as ada@example.org")
        return access.of_impersonation(structure.access, who, subject)
    word, slash, name = subject.partition("/")
    if not slash or not name:
        raise WordsError(f"{verb} what? give Kind/name, such as Queue/default")
    kind = {one.lower(): one for one in kinds.KINDS}.get(word.lower(), word)
    subject = f"{kind}/{name}"
    if known in {"submit", "manage", "read", "exec"}:
        if kind != "Queue":
            raise WordsError(f"jobs are put into queues: {verb} Queue/NAME, not {subject}")
        if name not in structure.queues:
            raise QuestionError(
                f"there is no Queue/{name}{suggestions.hint(name, structure.queues)}"
            )
        parents = {queue.name: queue.parent for queue in structure.queues.values()}
        above = queue_paths.ancestors(name, parents.get)
        if known == "exec":
            return access.of_exec(structure.access, who, name, above, who)
        return access.of_queue(structure.access, who, known, name, above)
    if kind not in kinds.STRUCTURAL_KINDS:
        hint = suggestions.hint(kind, sorted(kinds.STRUCTURAL_KINDS))
        there = ", ".join(sorted(kinds.STRUCTURAL_KINDS))
        raise WordsError(f"there is no kind {kind} that rules are about{hint}; known: {there}")
    if known == "drain" and kind != "NodePool":
        raise WordsError(f"nodes of pools are drained: drain NodePool/NAME, not {subject}")
    return access.of_object(structure.access, who, known, subject)
