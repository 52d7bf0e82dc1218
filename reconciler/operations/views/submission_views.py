"""Views of submissions that are not in git: overrides come in, counts go out."""

from collections.abc import Iterable

from reconciler.model.state import records
from reconciler.operations.views import json_format, view_types


def submissions_view(in_force: Iterable[records.Override]) -> view_types.SubmissionsView:
    """Return how many submissions wait for git."""
    kept = [one for one in in_force if one.verb == "submit"]
    since = [one.made_at for one in kept if one.waiting is not None]
    first = json_format.time_or_none(min(since, default=None))
    return view_types.SubmissionsView(len(since), first, len(kept) - len(since))
