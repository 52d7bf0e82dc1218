"""As whom work runs on nodes whose agent is root: never as root for want of an owner."""

import msgspec
import pytest

from reconciler.core.snapshot import owner_users
from reconciler.core.snapshot.owner_users import UserClass
from reconciler.model import desired
from reconciler.model.values.resources import Resources

PLAIN = desired.Pool("p", ("n",), Resources(1000, 2**30, 0))
ROOT = msgspec.structs.replace(PLAIN, allow_root=True)
OURS = msgspec.structs.replace(PLAIN, allow_root=True, runs_unmapped=True)


@pytest.mark.parametrize(
    ("owner", "user", "pools"),
    [
        ("ada@x.org", UserClass.OTHER, None),
        ("root@x.org", UserClass.ROOT, (False, True, True)),
        ("eve@x.org", UserClass.UNMAPPED, (False, False, True)),
        ("", UserClass.UNMAPPED, (False, False, True)),
    ],
)
def test_whose_work_a_pool_runs(
    owner: str, user: UserClass, pools: tuple[bool, bool, bool] | None
) -> None:
    structure = desired.Structure(unix_users={"ada@x.org": "ada", "root@x.org": "root"})
    assert owner_users.class_of(structure, owner) is user
    if pools is not None:
        assert tuple(owner_users.OPEN_TO[user](pool) for pool in (PLAIN, ROOT, OURS)) == pools
        reason = owner_users.refusal(user, owner)
        assert reason.code == "NoUnixUser"
        assert owner in reason.message
