"""Reasons are a contract: the list is closed, and its order is that of precedence."""

import msgspec
import pytest

from reconciler.model.state import pending_reasons
from reconciler.operations.views import view_types

#: As scripts and dashboards know them.
CODES = [
    "Held", "Invalid", "NotAllowed", "NoUnixUser", "DependencyNeverMet", "Dependency",
    "BackingOff", "ArrayLimit", "OverLimit", "OverBudget", "NeverFits", "NoTopologyDomain",
    "WaitingForQuota", "Fragmented", "InsufficientResources", "WaitingForEvictions", "Reserved",
    "Behind",
]  # fmt: skip


def test_the_list_is_closed_and_in_order() -> None:
    assert [code.value for code in pending_reasons.ReasonCode] == CODES
    assert sorted(pending_reasons.PRECEDENCE, key=pending_reasons.PRECEDENCE.__getitem__) == CODES


def test_what_is_shown_has_no_other_code() -> None:
    """Every reason is made of a code of the list, as the types of records and of views say."""
    for shape in (pending_reasons.Reason, view_types.ReasonView):
        fields = {field.name: field.type for field in msgspec.structs.fields(shape)}
        assert fields["code"] is pending_reasons.ReasonCode


def test_a_job_never_starts_if_one_of_its_reasons_never_ends() -> None:
    code = pending_reasons.ReasonCode.OVER_LIMIT
    passing, final = (pending_reasons.Reason(code, "m", never=never) for never in (False, True))
    window = pending_reasons.Reason(pending_reasons.ReasonCode.RESERVED, "m")
    assert pending_reasons.never_starts([final, window])
    assert not pending_reasons.never_starts([passing, window])


@pytest.mark.parametrize("code", list(pending_reasons.ReasonCode))
def test_some_codes_alone_say_that_waiting_does_not_help(code: pending_reasons.ReasonCode) -> None:
    final = {"Invalid", "NotAllowed", "NoUnixUser", "DependencyNeverMet", "NeverFits"}
    assert pending_reasons.Reason(code, "m").never == (code in final)


def test_of_pools_those_that_may_hold_the_job_and_whose_limits_allow_it_count() -> None:
    codes = pending_reasons.ReasonCode
    never, barred, waits = (
        [pending_reasons.Reason(codes.NEVER_FITS, "m")],
        [pending_reasons.Reason(codes.OVER_LIMIT, "m", never=True)],
        [pending_reasons.Reason(codes.OVER_LIMIT, "m")],
    )
    assert pending_reasons.of_fitting_pools([never, barred, waits]) == [barred, waits]
    assert pending_reasons.of_fitting_pools([never, never]) == [never]
    assert pending_reasons.of_open_pools([barred, waits]) == [waits]
    assert pending_reasons.of_open_pools([barred, barred]) == [barred, barred]
