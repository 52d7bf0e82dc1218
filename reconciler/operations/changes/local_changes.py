"""Changes that a person asks for at a command line: made in their clone, or by the controller.

In a clone of the desired repository a change is a commit of the person's own, pushed. Without one
it is sent to the controller, which commits in the person's name. Both end in git.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from reconciler.changes import array_edits, requests, yaml_edit
from reconciler.changes.clone import files, working_clone
from reconciler.model.rules import review_findings
from reconciler.model.state import states
from reconciler.operations import scratch_repository
from reconciler.operations.changes import (
    change_permissions,
    change_requests,
    held_changes,
    node_drain,
    previous_runs,
    pusher,
    remote_changes,
    rerun_edit,
    submission,
    suspension,
    targets,
)
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.validate import object_folders

#: Verbs that change structure, which is held and refused by itself.
STRUCTURAL = frozenset({"drain", "undrain", "suspend", "resume"})
#: How long to wait for a controller's answer about a job before a clone continues without it.
LOOK_S = 3.0


def find_target(
    *,
    clone: Path | None,
    server: str | None,
    token_file: str | None,
    here: Path,
    with_local: bool = False,
    ephemeral: Literal["no", "preferred", "required"] = "no",
) -> targets.ChangeTarget:
    """Return the named clone, the clone around ``here``, or the controller.

    Args:
        with_local: push the clone's other commits that are not pushed yet, too.
        ephemeral: whether jobs that are submitted there need no file in git.

    Raises:
        ChangeError: there is none.
    """
    try:
        found = targets.find(clone=clone, server=server, token_file=token_file, here=here)
    except (files.CloneError, endpoints.EndpointError) as error:
        raise change_requests.ChangeError(str(error)) from error
    found.ephemeral = ephemeral
    if found.clone is not None:
        found.clone.with_local = with_local
    return found


def carry_out(
    changes: list[change_requests.Change], to: targets.ChangeTarget, *, dry_run: bool = False
) -> list[change_requests.ChangeResult]:
    """Make changes, in order; all of them are pushed, in one go, when this returns.

    Several are of one kind, and acts of one verb and for one reason. All are looked up and checked
    before the first is made, so that what is wrong with any is told of each; where one can't be
    made nevertheless, none is.

    ``dry_run``: everything is looked up and checked, and nothing is made.

    Raises:
        ChangeError: one was refused, and none was made.
    """
    been: dict[str, previous_runs.PreviousRun] = {}
    if not dry_run and (to.clone is None or to.standing is not None):
        been = previous_runs.ended(previous_runs.names_of(changes), to.endpoint)
    is_apart = to.needs_no_commit and all(_verb(change) == "submit" for change in changes)
    if to.clone is not None and not is_apart:
        acts = [one for one in changes if isinstance(one, change_requests.Act)]
        kept = to.submitting(one.name for one in acts if one.verb == "cancel")
        waiting = [one for one in acts if one.name in kept]
        here = [one for one in changes if one not in waiting]
        if here and not dry_run and to.endpoint is not None:
            _withdrawn(waiting, to.endpoint, dry_run=True)  # what is refused keeps all as it is
        done = _at_clone(here, to.clone, to, dry_run=dry_run) if here else []
        done = _judged(changes, done, to, been)
        return done + (_withdrawn(waiting, to.endpoint, dry_run=dry_run) if to.endpoint else [])
    if to.endpoint is None:
        raise change_requests.ChangeError("no place to make the change")
    try:
        with api_client.ApiClient(to.endpoint) as api:
            ephemeral = to.ephemeral if is_apart else "no"
            done = _at_controller(changes, api, ephemeral, dry_run=dry_run)
    except api_client.ApiError as error:
        if error.status != 404 or len(changes) > 1:
            raise _of_api(error) from error
        return [_left(changes[0], to.endpoint, error, dry_run=dry_run)]
    except endpoints.EndpointError as error:
        raise change_requests.ChangeError(str(error)) from error
    return _judged(changes, done, to, been)


def _withdrawn(
    waiting: list[change_requests.Act], endpoint: endpoints.Endpoint, *, dry_run: bool
) -> list[change_requests.ChangeResult]:
    """Cancel jobs that wait for git, which no clone has, at the controller."""
    if not waiting:
        return []
    try:
        with api_client.ApiClient(endpoint) as api:
            return _act_at(waiting, api, dry_run=dry_run)
    except api_client.ApiError as error:
        raise _of_api(error) from error


def _judged(
    changes: Sequence[change_requests.Change],
    done: list[change_requests.ChangeResult],
    to: targets.ChangeTarget,
    been: Mapping[str, previous_runs.PreviousRun],
) -> list[change_requests.ChangeResult]:
    """Return results, with why they do not apply by themselves if the controller says so.

    ``been`` are earlier runs of what is submitted that have ended.
    """
    if not any(one.commit for one in done):
        return done
    verbs = {_verb(change) for change in changes}
    standing = to.standing if to.standing is not None else object_folders.standing(to.endpoint)
    branch = to.clone.pushes_to if to.clone else ""
    commit = next(one.commit for one in reversed(done) if one.commit)
    learned = standing
    if standing and not held_changes.elsewhere(standing, branch):
        learned = object_folders.learned(to.endpoint, to.clone, commit, standing)
    is_read = learned is not standing or (standing or {}).get("attemptedRevision") == commit
    over = previous_runs.without_start(been, to.endpoint) if is_read else {}
    left = previous_runs.left_checkpoints(changes, been)
    blocked = standing.get("blocked") if standing and to.clone and verbs == {"submit"} else ""
    unled = (held_changes.not_led(blocked),) if blocked else ()  # a controller says it itself

    def judged(one: change_requests.ChangeResult) -> change_requests.ChangeResult:
        if one.commit and one.name in over:
            return msgspec.structs.replace(one, message="committed", but=over[one.name])
        message = change_requests.placed(one.message, commit, learned)
        warnings = (*one.warnings, left[one.name]) if one.name in left else one.warnings
        warnings += unled if one.commit else ()
        one = msgspec.structs.replace(one, message=message, warnings=warnings)
        if verbs == {"approve"}:  # it is what lets a change apply, whatever else is held
            return _if_approved(one, learned if is_read else None)
        why = held_changes.elsewhere(standing, branch)
        why = why or held_changes.revision(standing, one.commit) or held_changes.emptied(standing)
        if not why and is_read and not verbs & STRUCTURAL:
            why = held_changes.job(learned, one.name)
        if not why and verbs & STRUCTURAL:
            why = held_changes.structure(learned)
        if not why or not one.commit:
            return one
        message = one.message
        for verb in verbs & change_requests.WORDS.keys():
            message = message.replace(change_requests.WORDS[verb], f"{verb} not applied yet", 1)
        refused = standing is not None and standing.get("sync") != "Unknown"
        return msgspec.structs.replace(one, message=message, withheld=why, refused=refused)

    return [judged(one) for one in done]


def _if_approved(
    one: change_requests.ChangeResult, learned: dict[str, Any] | None
) -> change_requests.ChangeResult:
    """Return an approval, with why it has no effect if it was read and the change is still held."""
    why = held_changes.approval(learned, one.name)
    if not why or not one.commit:
        return one
    message = one.message.replace(change_requests.WORDS["approve"], "approval does not count", 1)
    return msgspec.structs.replace(one, message=message, withheld=why, refused=True)


def _verb(change: change_requests.Change) -> str:
    return "submit" if isinstance(change, change_requests.Submit) else change.verb


def _of_api(error: api_client.ApiError) -> change_requests.ChangeError:
    return change_requests.ChangeError(
        str(error),
        refused=error.refused,
        problems=error.problems,
        unreachable=error.status == 503,
        is_invalid=error.status == 400 and bool(error.problems),
    )


def _at_controller(
    changes: Sequence[change_requests.Change],
    api: api_client.ApiClient,
    ephemeral: str,
    *,
    dry_run: bool,
) -> list[change_requests.ChangeResult]:
    """Make all changes in one request; each text is tried alone before, so that errors have its
    lines.
    """
    texts = [one for one in changes if isinstance(one, change_requests.Submit)]
    if not texts:
        return _act_at(changes, api, dry_run=dry_run)

    def query(change: change_requests.Submit) -> dict[str, str]:
        found = {"owner": change.owner} if change.owner else {}
        return found if ephemeral == "no" else {**found, "ephemeral": ephemeral}

    def sent(
        change: change_requests.Submit, path: str, told: str
    ) -> list[change_requests.ChangeResult]:
        try:
            return _post(change.text, query(change), path, told, api)
        except change_requests.ChangeError as error:
            error.problems = submission.placed(change, change.text, error.problems)
            raise

    def tried(change: change_requests.Submit) -> list[change_requests.ChangeResult]:
        # a path of its own: a controller that can't rehearse must not take it for a submission
        return sent(change, "/v1/dry-runs", "would be submitted")

    if dry_run or len(texts) > 1:
        try:
            found = change_requests.each(texts, tried)
        except change_requests.ChangeError as error:
            if dry_run or not error.unreachable:
                raise  # else they wait for git, as the whole is answered
        else:
            if dry_run:
                return found
    if len(texts) == 1:
        return sent(texts[0], "/v1/jobs", "submitted")
    whole = "---\n".join(f"{one.text.rstrip()}\n" for one in texts)
    return _post(whole, query(texts[0]), "/v1/jobs", "submitted", api)


def _post(
    text: str, query: dict[str, str], path: str, told: str, api: api_client.ApiClient
) -> list[change_requests.ChangeResult]:
    """Return the controller's answer to a text of jobs.

    A job without an owner gets the token's person there, or the ``owner`` of the query if the token
    is not a person's.
    """
    try:
        answer = api.post(path, content=text.encode(), kind="application/yaml", query=query)
    except api_client.ApiError as error:
        raise _of_api(error) from error
    return [_done(item, told) for item in answer["items"]]


def _act_at(
    changes: Sequence[change_requests.Change], api: api_client.ApiClient, *, dry_run: bool
) -> list[change_requests.ChangeResult]:
    """Return the controller's answer to a verb with its subjects."""
    acts = [one for one in changes if not isinstance(one, change_requests.Submit)]
    ((verb, reason, fresh),) = {
        (one.verb, one.reason, isinstance(one, change_requests.Act) and one.fresh) for one in acts
    }
    names = [
        name
        for one in acts
        for name in (one.nodes if isinstance(one, change_requests.DrainRequest) else (one.name,))
    ]
    body: dict[str, Any] = {"verb": verb, "names": names, "reason": reason}
    if dry_run:
        body["dry_run"] = True
    if fresh:
        body["fresh"] = True
    parts = {one.name: one for one in acts if isinstance(one, change_requests.Act) and one.elements}
    if parts:
        body["elements"] = {name: one.elements for name, one in parts.items()}
    answer = api.post("/v1/changes", body)
    return [
        _done(item, change_requests.told(parts.get(str(item["name"]), acts[0]), dry_run=dry_run))
        for item in answer["items"]
    ]


def _done(item: dict[str, Any], message: str) -> change_requests.ChangeResult:
    warnings = tuple(map(str, item.get("warnings") or ()))  # older controllers do not send it
    return change_requests.ChangeResult(
        *(str(item["name"]), str(item["message"]) or message, item["commit"]),
        warnings=warnings,
        ephemeral=bool(item.get("ephemeral")),
    )


def _at_clone(
    changes: Sequence[change_requests.Change],
    clone: working_clone.Clone,
    target: targets.ChangeTarget,
    *,
    dry_run: bool,
) -> list[change_requests.ChangeResult]:
    """Make all changes in one push; undo the commits if one can't be made."""
    change_permissions.require(changes, clone, target)

    def carry(
        change: change_requests.Change, *, dry: bool = False
    ) -> list[change_requests.ChangeResult]:
        return _in_clone(change, clone, target, dry_run=dry)

    if dry_run or len(changes) > 1:
        found = change_requests.each(changes, functools.partial(carry, dry=True))
        if dry_run:
            return found
    try:
        with clone.together() as push:
            done = change_requests.each(changes, carry)
    except files.CloneError as error:
        raise change_requests.of_clone(error) from error
    told = {done[0].name: push.told} if done else {}  # once for all of them
    return [
        msgspec.structs.replace(
            one, commit=push.now(one.commit), warnings=one.warnings + told.get(one.name, ())
        )
        for one in done
    ]


def _in_clone(
    change: change_requests.Change,
    clone: working_clone.Clone,
    target: targets.ChangeTarget,
    *,
    dry_run: bool,
) -> list[change_requests.ChangeResult]:
    endpoint = target.endpoint
    try:
        if isinstance(change, change_requests.Submit):
            spent, standing = previous_runs.SpentRuns(endpoint), target.standing
            return submission.submit(change, clone, spent, dry_run=dry_run, standing=standing)
        if isinstance(change, change_requests.DrainRequest):
            return _drain(change, clone, dry_run=dry_run)
        if endpoint is not None:
            _require_state(change, clone, endpoint)
        message = change_requests.told(change, dry_run=dry_run)
        if change.verb == "rerun":
            rerun = rerun_edit.Rerun(fresh=change.fresh, elements=change.elements)
            message += rerun.resuming(clone.files.document("Job", change.name))
        held_at = held_changes.held_at(change.name, target.standing)
        outcome = _act(change, clone, held_at=held_at, dry_run=dry_run)
        already = requests.IS_HELD if change.verb == "hold" else change_requests.UNCHANGED
        return [change_requests.said(change.name, outcome, message, already)]
    except remote_changes.InvalidError as error:
        problems = tuple(problem.text() for problem in error.problems)
        message = str(error)
        is_invalid = bool(problems)
        if isinstance(change, change_requests.Submit):
            problems = submission.placed(change, submission.owned(change), problems)
            message = f"{change.place}: {message}" if change.place and not problems else message
        refused = review_findings.by_policy(problem.rule for problem in error.problems)
        raise change_requests.ChangeError(
            message, refused=refused, problems=problems, is_invalid=is_invalid
        ) from error
    except requests.ConflictError as error:
        raise change_requests.ChangeError(str(error)) from error
    except files.MissingObjectError as error:
        return [_left(change, endpoint, error, dry_run=dry_run)]
    except files.CloneError as error:
        raise change_requests.of_clone(error) from error
    except (yaml_edit.EditError, scratch_repository.RevisionError) as error:
        raise change_requests.ChangeError(str(error)) from error


def _left(
    change: change_requests.Change,
    endpoint: endpoints.Endpoint | None,
    missing: Exception,
    *,
    dry_run: bool,
) -> change_requests.ChangeResult:
    """Return the message about a job that is known, and whose YAML was deleted or never was in git.

    A deleted one counts as cancelled already. The others are the controller's to change.

    Raises:
        ChangeError: for other verbs, with what is known of the job.
    """
    known = None
    if isinstance(change, change_requests.Act) and endpoint is not None:
        try:
            with api_client.ApiClient(endpoint, timeout_s=LOOK_S) as api:
                known = api.get(f"/v1/jobs/{change.name}")["job"]
                if known.get("ephemeral"):
                    return _act_at([change], api, dry_run=dry_run)[0]
        except (api_client.ApiError, endpoints.EndpointError) as error:
            if known is not None and isinstance(error, api_client.ApiError):
                raise _of_api(error) from error
            known = None  # a clone can be worked in without a controller
    if known is None or not known["removed"] or not isinstance(change, change_requests.Act):
        raise change_requests.ChangeError(str(missing)) from missing
    if change.verb == "cancel":
        return change_requests.ChangeResult(
            change.name, f"its YAML is deleted already; the job is {known['state']}"
        )
    shown = f" (`git log -p -- {known['path']}` shows it)" if known["path"] else ""
    raise change_requests.ChangeError(
        f"{change.name} is {known['state']}, and its YAML was deleted{shown}. To run it again: "
        f"restore the file with another name, or with spec.run: {known['run'] + 1}"
    ) from missing


def _require_state(
    change: change_requests.Act, clone: working_clone.Clone, endpoint: endpoints.Endpoint
) -> None:
    """Refuse to hold a run that has ended, and to rerun elements of one that has not.

    Raises:
        ChangeError: it has, or has not.
        ConflictError: elements of it are alive.
    """
    name = change.name
    if change.verb != "hold" and (change.verb == "release" or not change.elements):
        return
    run = rerun_edit.run_of(clone.files.document("Job", name))
    try:
        with api_client.ApiClient(endpoint, timeout_s=LOOK_S) as api:
            known = api.get(f"/v1/jobs/{name}")["job"]
    except (api_client.ApiError, endpoints.EndpointError):
        return  # a clone can be worked in without a controller
    is_over = known["state"] in states.FINISHED_JOB_STATES
    last = pusher.LastRun(run, known["state"] if is_over else "")
    if known["run"] == run and change.verb == "rerun":
        pusher.require_elements_over(name, last)
    elif known["run"] == run and is_over:
        raise change_requests.ChangeError(pusher.finished(name, last, change.verb))


def _act(
    change: change_requests.Act, clone: working_clone.Clone, *, held_at: str = "", dry_run: bool
) -> working_clone.CloneOutcome:
    because = f": {change.reason}" if change.reason else ""
    name = change.name
    if change.verb == "approve":
        pusher.require_digest(name)
        subject = requests.approval_subject(name, change.reason)
        return clone.approve(subject, name, held_at=held_at, dry_run=dry_run)
    if change.elements:
        edit = array_edits.edit(change.verb, change.elements)
        if change.verb == "rerun":
            edit = rerun_edit.Rerun(fresh=change.fresh, elements=change.elements)
        fields = edit(clone.files.document("Job", name))
        message = f"{change.verb.capitalize()} Job/{name}[{change.elements}]{because}"
        return clone.set_fields("Job", name, fields, message=message, dry_run=dry_run)
    if change.verb == "cancel":
        message = f"Cancel Job/{name}{because}"
        try:
            return clone.remove("Job", name, message=message, dry_run=dry_run)
        except files.MissingObjectError:
            if left := clone.history.left_behind(f"Cancel Job/{name}"):
                return _pushed_again(clone, left, dry_run=dry_run)
            raise
    if change.verb in ("suspend", "resume"):
        return suspension.put(clone, name, change.reason, verb=change.verb, dry_run=dry_run)
    if change.verb == "release":
        fields = suspension.release_fields(clone.files.document("Job", name))
    elif change.verb == "rerun":
        if left := clone.history.left_behind(f"Rerun Job/{name}"):
            return _pushed_again(clone, left, dry_run=dry_run)
        fields = rerun_edit.Rerun(fresh=change.fresh)(clone.files.document("Job", name))
    else:
        fields = suspension.hold_fields(clone.files.document("Job", name), change.reason)
    message = f"{change.verb.capitalize()} Job/{name}{because}"
    return clone.set_fields("Job", name, fields, message=message, dry_run=dry_run)


def _pushed_again(
    clone: working_clone.Clone, path: str, *, dry_run: bool
) -> working_clone.CloneOutcome:
    """Push what the same command has committed before and could not push."""
    earlier = clone.history.not_pushed(path)
    if dry_run or earlier is None:
        return working_clone.CloneOutcome("rehearsed", path)
    return clone.push_again(earlier, path)


def _drain(
    change: change_requests.DrainRequest, clone: working_clone.Clone, *, dry_run: bool
) -> list[change_requests.ChangeResult]:
    """Drain and undrain: the overrides of the pools that declare the nodes."""
    because = f": {change.reason}" if change.reason else ""
    told, done = change_requests.told(change, dry_run=dry_run), []
    for one in node_drain.overrides(change.verb, change.nodes, change.reason, clone):
        fields: requests.Fields = ((("spec", "overrides"), one.overrides or yaml_edit.REMOVED),)
        message = f"{node_drain.subject(change.verb, one.nodes)}{because}"
        outcome = clone.set_fields("NodePool", one.pool, fields, message=message, dry_run=dry_run)
        done += [change_requests.said(node, outcome, told) for node in one.nodes]
    return done
