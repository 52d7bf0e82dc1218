"""``exec`` is a right of its own; another's job takes ``impersonate`` too."""

import pytest

from reconciler.model.policy import access

EXEC = access.AccessRule(("exec",), queues=("research",))
MANAGE = access.AccessRule(("manage", "submit", "read"), queues=("*",))
AS_BOB = access.AccessRule(("impersonate",), owners=("bob@x.org",))


@pytest.mark.parametrize(
    ("rules", "queue", "above", "owner", "allowed"),
    [
        ((EXEC,), "research", (), "ada@x.org", True),
        ((EXEC,), "vision", ("research",), "ada@x.org", True),
        ((EXEC,), "other", (), "ada@x.org", False),
        ((EXEC,), "research", (), "", True),
        ((EXEC,), "research", (), "bob@x.org", False),
        ((EXEC, AS_BOB), "research", (), "bob@x.org", True),
        ((EXEC, AS_BOB), "research", (), "eve@x.org", False),
        ((MANAGE,), "research", (), "ada@x.org", False),
        ((MANAGE, AS_BOB), "research", (), "bob@x.org", False),
    ],
)
def test_who_may_run_commands(
    rules: tuple[access.AccessRule, ...],
    queue: str,
    above: tuple[str, ...],
    owner: str,
    allowed: bool,
) -> None:
    role = access.Role("r", ("ada@x.org",), rules)
    known = access.Access({"ada@x.org": access.Identity("ada@x.org")}, (role,))
    assert access.of_exec(known, "ada@x.org", queue, above, owner).allowed is allowed


def test_without_roles_only_own_jobs_are_entered() -> None:
    assert access.of_exec(access.Access(), "ada@x.org", "q", (), "ada@x.org").allowed
    assert not access.of_exec(access.Access(), "ada@x.org", "q", (), "bob@x.org").allowed
