"""Permission checks of changes in a clone, made before there is a commit.

Roles are those that the clone holds. Who commits is judged again by what is in force once the
commit is read, and by its signature; here, nothing is refused that may be allowed there.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from reconciler.changes import yaml_edit
from reconciler.changes.clone import files, working_clone
from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.operations import local_git
from reconciler.operations.changes import change_requests, suspension, targets

Json = Any


def require(
    changes: Sequence[change_requests.Change],
    clone: working_clone.Clone,
    target: targets.ChangeTarget,
) -> None:
    """Refuse changes that no role allows to the author of the clone's commits.

    Raises:
        ChangeError: no role allows one of them; nothing was committed.
    """
    structure, _ = targets.structure_of(clone, target.standing)
    if structure is None or structure.settings.verification != "required":
        return
    who = local_git.user_email(clone.root)
    if who is None or who not in structure.access.identities:
        return  # the key may be somebody's whom git does not name
    for change in changes:
        decisions: list[access.Decision] = []
        # what can't be read is told by who makes the change
        with contextlib.suppress(files.CloneError, yaml_edit.EditError, suspension.SubjectError):
            decisions += _decisions(change, clone, structure, who)
        for decision in decisions:
            if not decision.allowed:
                raise change_requests.ChangeError(
                    f"{decision.why}, by the Access in this clone; nothing was committed. To fix: "
                    "ask somebody who may, or pull if you were given the right just now",
                    refused=True,
                    says_unchanged=True,
                )


def _decisions(
    change: change_requests.Change,
    clone: working_clone.Clone,
    structure: desired.Structure,
    who: str,
) -> Iterator[access.Decision]:
    """Yield what the roles say of each part of a change; nothing of what can't be read here."""
    known = structure.access
    parents = {one.name: one.parent for one in structure.queues.values()}
    if isinstance(change, change_requests.Submit):
        for written in yaml_edit.documents(change.text):
            queue, owner = _whose(written)
            asked = access.JobChange((queue,), access.JobOwners((), (owner,)), _said(written))
            yield access.of_job(known, who, asked, parents)
    elif isinstance(change, change_requests.DrainRequest):
        pools = structure.pool_of_node()
        for pool in dict.fromkeys(pools[node] for node in change.nodes if node in pools):
            yield access.of_object(known, who, "drain", f"NodePool/{pool}")
    elif change.verb == "approve":
        yield access.of_approval(known, who)
    elif change.verb in ("suspend", "resume"):
        kind, name = suspension.parse(change.name)
        yield access.of_object(known, who, "change", f"{kind}/{name or structure.settings.name}")
    else:
        queue, owner = _whose(clone.files.document("Job", change.name))
        after = () if change.verb == "cancel" else (owner,)
        asked = access.JobChange((queue,), access.JobOwners((owner,), after))
        yield access.of_job(known, who, asked, parents)


def _whose(written: Json) -> tuple[str, str]:
    """Return queue and owner of a job's document; what it lacks is as if it were left out."""
    found = _spec(written)
    return str(found.get("queue") or "default"), str(found.get("owner") or "")


def _said(written: Json) -> tuple[access.JobPriority, ...]:
    """Return what a job's document says of its priority, as far as that can be read."""
    found = _spec(written)
    number, name = found.get("priority"), found.get("priorityClass")
    said = access.JobPriority(
        number if isinstance(number, int) else None, name if isinstance(name, str) else None
    )
    return (said,) if said.is_said else ()


def _spec(written: Json) -> dict[str, Any]:
    spec = written.get("spec") if isinstance(written, dict) else None
    return spec if isinstance(spec, dict) else {}
