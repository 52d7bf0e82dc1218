"""Changes that users ask for, on their way into git, and the answer when they are pushed."""

from typing import NamedTuple

import msgspec

from reconciler.operations.audit import access_audit
from reconciler.operations.changes import held_changes, remote_changes
from reconciler.operations.views import job_views
from reconciler.server import errors
from reconciler.server.api import envelopes
from reconciler.server.changes import (
    change_review,
    ephemeral_intake,
    submission_withdrawal,
    waiting_submissions,
)
from reconciler.server.loop_link import LinkClient
from reconciler.server.repository_hints import RepositoryHints

#: The most reasons, and names with one reason, in an error.
TOLD_MAX = 20
#: Before why a file of a job that is over does not leave.
STAYS = "its file stays: "


class ResultView(msgspec.Struct, frozen=True):
    """Result of one document or subject; ``warnings`` do not refuse a document. ``ephemeral``: no
    file in git describes the job, and no commit was needed.
    """

    name: str
    status: int
    message: str
    commit: str | None
    warnings: list[str] = msgspec.field(default_factory=list)
    ephemeral: bool = False


class Results(envelopes.Envelope, frozen=True, kw_only=True):
    """One result for each change, in order; all of them are pushed together."""

    items: list[ResultView]


class UncommittedWays(NamedTuple):
    """The ways of submissions that are not in git: to be kept, and to be withdrawn."""

    waiting: waiting_submissions.WaitingSubmissions
    withdrawal: submission_withdrawal.SubmissionWithdrawal


class ChangeIntake:
    """The way of users' changes: reviewed, pushed, and judged by what is in force.

    Args:
        submitter: pushes; None if the server was started without a repository.
        review: reviews changes before git is asked and after it was.
        hints: have the loop look at what was pushed.
        access_log: takes refusals.
        link: has the loop's last message, by which answers have their time.
        uncommitted: keeps submissions that git can't take now, and withdraws them.
        ephemeral: takes jobs that need no file in git.
    """

    def __init__(
        self,
        submitter: remote_changes.Submitter | None,
        review: change_review.ChangeReview,
        hints: RepositoryHints,
        access_log: access_audit.AccessAudit,
        link: LinkClient,
        *,
        uncommitted: UncommittedWays,
        ephemeral: ephemeral_intake.EphemeralIntake,
    ) -> None:
        self._waiting, self._withdrawal = uncommitted
        self._ephemeral = ephemeral
        self._submitter = submitter
        self._review = review
        self._hints = hints
        self._access_log = access_log
        self._link = link

    def require_repository(self) -> remote_changes.Submitter:
        """Return the submitter.

        Raises:
            Failure: 501, if there is no repository to push to.
        """
        if self._submitter is None:
            raise errors.Failure(
                501,
                "this controller was started without a repository to push to; commit there instead",
            )
        return self._submitter

    async def push(self, asked: change_review.ChangesUnderReview) -> Results:
        """Have changes pushed that the caller may make, all or none, and the loop look at once.

        Files of jobs that are over leave each by itself: one that stays is no reason for others to.

        Raises:
            Failure: a change was not pushed; the message has the reason of each.
            InvalidError: the text holds no jobs that could run.
            StoreError: the store can't be read.
        """
        changes, refused, wanted = await self._review.weigh(asked)
        together = any(change.verb != "prune" for change in changes)
        if refused and together:
            results = iter([remote_changes.withdrawn(change.name) for change in wanted])
        else:
            made = await self._made(asked, wanted, together=together)
            results = iter(made)
            if not all(one.is_ephemeral for one in made):
                self._hints.pushed()
        answers = [
            remote_changes.RemoteChangeResult(
                change.name, 403, ("" if together else STAYS) + refused[position]
            )
            if position in refused
            else msgspec.structs.replace(next(results), warnings=change.warnings)
            for position, change in enumerate(changes)
        ]
        for change, result in zip(changes, answers, strict=True):
            if result.status == 403 and not together:  # else the whole answer is a refusal
                what = f"{change.verb} {change.name}"
                self._access_log.note("Forbidden", asked.caller.name, "", what, result.message)
        return Results(
            items=_result_views(answers, together=together),
            **envelopes.head(self._link.published),
        )

    async def _made(
        self,
        asked: change_review.ChangesUnderReview,
        wanted: list[remote_changes.SubmittedDocument],
        *,
        together: bool,
    ) -> list[remote_changes.RemoteChangeResult]:
        """Make reviewed changes: of jobs that are not in git by the loop, of others in git."""
        if await self._ephemeral.takes(asked, wanted):
            return await self._ephemeral.begin(asked.caller, wanted)
        kept = await self._withdrawal.those(wanted)
        if not kept:
            return await self._changed(asked, wanted, together=together)
        alone = {position: one.override for position, one in kept.items() if one.is_alone}
        denied = await self._withdrawal.refusals(asked.caller, list(alone.values()))
        others = [one for position, one in enumerate(wanted) if position not in alone]
        made = await self._changed(asked, others, together=True) if others and not denied else []
        if denied or any(one.status >= 400 for one in made):
            known = {one.name: one for one in (*denied, *made)}
            return [known.get(one.name) or remote_changes.withdrawn(one.name) for one in wanted]
        done = iter(made)
        results: list[remote_changes.RemoteChangeResult] = []
        for position, one in enumerate(wanted):
            if position in alone:
                result = await self._withdrawal.withdraw(asked.caller, one, alone[position])
            else:
                result = next(done)
            if position in kept and position not in alone:
                result = await self._withdrawal.withdraw_beside(
                    asked.caller, one, kept[position].override, result
                )
            results.append(result)
        return results

    async def _changed(
        self,
        asked: change_review.ChangesUnderReview,
        wanted: list[remote_changes.SubmittedDocument],
        *,
        together: bool,
    ) -> list[remote_changes.RemoteChangeResult]:
        """Change jobs that are there: those not in git by the loop, others in git."""
        apart = await self._ephemeral.those(wanted)
        if not apart:
            return await self._submitted(wanted, together=together)
        ephemeral = [wanted[position] for position in apart]
        denied = await self._ephemeral.refusals(asked.caller, ephemeral)
        others = [one for position, one in enumerate(wanted) if position not in apart]
        if any(denied):
            told = iter([one or remote_changes.withdrawn("") for one in denied])
            done = iter([remote_changes.withdrawn(one.name) for one in others])
        else:
            pushed = await self._submitted(others, together=True) if others else []
            done = iter(pushed)
            if any(one.status >= 400 for one in pushed):
                told = iter([remote_changes.withdrawn(one.name) for one in ephemeral])
            else:
                told = iter(
                    [
                        await self._ephemeral.change(asked.caller, wanted[position], meant)
                        for position, meant in apart.items()
                    ]
                )
        return [
            msgspec.structs.replace(next(told if position in apart else done), name=one.name)
            for position, one in enumerate(wanted)
        ]

    async def _submitted(
        self, wanted: list[remote_changes.SubmittedDocument], *, together: bool
    ) -> list[remote_changes.RemoteChangeResult]:
        """Push changes, all or none; submissions of jobs wait if git can't be reached."""
        submitter = self.require_repository()
        if together and all(one.verb == "submit" and not one.dry_run for one in wanted):
            return await self._waiting.submit(submitter, wanted)
        return await submitter.submit(wanted, together=together)

    async def _behind_others(self, results: Results) -> Results:
        """Return results, with a warning on jobs that wait for one of their name without a file."""
        names = [one.name for one in results.items if one.commit]
        alive = await self._ephemeral.alive(names)
        if not alive:
            return results
        warned = [
            msgspec.structs.replace(one, warnings=[*one.warnings, ephemeral_intake.WAITS])
            if one.name in alive
            else one
            for one in results.items
        ]
        return msgspec.structs.replace(results, items=warned)

    def _warned(self, results: Results, verb: remote_changes.Verb) -> Results:
        published = self._link.published
        if verb != "submit" or published is None or not published.blocked:
            return results
        warning = held_changes.not_led(published.blocked)
        warned = [
            msgspec.structs.replace(one, warnings=[*one.warnings, warning]) if one.commit else one
            for one in results.items
        ]
        return msgspec.structs.replace(results, items=warned)

    async def judged(self, results: Results, verb: remote_changes.Verb) -> Results:
        """Return the same results, with a message on those that are committed and do not apply by
        themselves, and a warning on jobs that are submitted to a controller that leads nothing.

        Raises:
            Failure: too many wait.
            StoreError: the store can't be read.
        """
        results = self._warned(results, verb)
        if verb == "submit":
            results = await self._behind_others(results)
        withheld = await self._review.told(verb)
        if not withheld:
            return results
        pending = [
            msgspec.structs.replace(result, message=withheld) if result.commit else result
            for result in results.items
        ]
        return Results(items=pending, **envelopes.head(self._link.published))


def _result_views(
    found: list[remote_changes.RemoteChangeResult], *, together: bool
) -> list[ResultView]:
    """Return the results if every change was pushed; if each stands alone, refused ones are left
    out.

    Raises:
        Failure: a change was not pushed; the message has the reason of each, and the others'
            results.
    """
    failed = [
        result for result in found if result.status >= 400 and (together or result.status != 403)
    ]
    bad = [result for result in failed if result.status != remote_changes.WITHDRAWN]
    if bad:
        pushed = len(found) - len(failed)
        done = f"; {pushed} of {len(found)} were pushed" if pushed else "; nothing was changed"
        raise errors.Failure(
            max(result.status for result in bad),
            _told(bad) + (done if len(found) > 1 else ""),
            problems=[
                job_views.problem_view(problem) for result in bad for problem in result.problems
            ],
            retry_after_s=1.0 if any(result.status == 503 for result in bad) else None,
        )
    return [
        ResultView(
            *(result.name, result.status, result.message, result.commit, list(result.warnings)),
            result.is_ephemeral,
        )
        for result in found
    ]


def _told(bad: list[remote_changes.RemoteChangeResult]) -> str:
    """Return why some were refused, each with its name; a common reason once."""
    names: dict[str, list[str]] = {}
    for result in bad:
        names.setdefault(result.message, []).append(result.name)
    listed = [f"{_some(of)}: {message}" for message, of in names.items()]
    more = [f"and {len(listed) - TOLD_MAX} more"] if len(listed) > TOLD_MAX else []
    return "; ".join(listed[:TOLD_MAX] + more)


def _some(names: list[str]) -> str:
    rest = len(names) - TOLD_MAX
    return ", ".join(names[:TOLD_MAX]) + (f" and {rest} more" if rest > 0 else "")
