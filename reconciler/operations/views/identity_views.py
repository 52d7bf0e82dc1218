"""The view of a person: what ``Access`` says of one."""

from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.operations.views import json_format


class IdentityView(json_format.View, frozen=True):
    """A person in ``Access``. ``isListed`` is False for a stranger to it.

    ``signs`` tells if a key of one's own is listed; ``verification`` if commits need one.
    """

    name: str
    is_listed: bool
    groups: list[str]
    roles: list[str]
    unix_user: str | None
    signs: bool
    verification: str


def shown(structure: desired.Structure, who: str) -> IdentityView:
    """Return the view of somebody."""
    known = structure.access.identities.get(who)
    return IdentityView(
        name=who,
        is_listed=known is not None,
        groups=[] if known is None else list(known.groups),
        roles=access.roles_of(structure.access, who),
        unix_user=structure.unix_users.get(who),
        signs=known is not None and bool(known.keys),
        verification=structure.settings.verification,
    )
