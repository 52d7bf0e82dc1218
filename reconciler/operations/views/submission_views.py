"""Views of submissions that are not in git: overrides come in, counts and words go out."""

from collections.abc import Iterable

from reconciler.model.state import records
from reconciler.operations.views import json_format, view_types


def submissions_view(in_force: Iterable[records.Override]) -> view_types.SubmissionsView:
    """Return how many submissions wait for git."""
    kept = [one for one in in_force if one.verb == "submit"]
    since = [one.made_at for one in kept if one.waiting is not None]
    first = json_format.time_or_none(min(since, default=None))
    return view_types.SubmissionsView(len(since), first, len(kept) - len(since))


def uncommitted_text(name: str, in_force: Iterable[records.Override]) -> str:
    """Return why a job that was submitted is not there; empty if none of that name is kept."""
    kept = next((one for one in in_force if one.key == ("submit", name)), None)
    if kept is None:
        return ""
    ending = f"muster overrides clear submit {name}"
    if isinstance(kept.submission, records.Submission) and kept.submission.refused:
        return (
            f"there is no Job/{name}: it was submitted and not committed: "
            f"{kept.submission.refused}. To fix: submit it again as it may be; {ending} forgets "
            "this one"
        )
    return (
        f"there is no Job/{name} yet: it was submitted, and waits for git to commit it: "
        f"{kept.reason}. To fix: see that git can take commits, then it goes on by itself; "
        f"{ending} withdraws it"
    )
