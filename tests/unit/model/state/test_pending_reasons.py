"""Reasons are a contract: the list is closed, and its order is that of precedence."""

import msgspec

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


def test_what_a_limit_forbids_for_good_waits_in_vain_whatever_else_is_told() -> None:
    never = pending_reasons.Reason(
        pending_reasons.ReasonCode.OVER_LIMIT, f"4 GPUs: {pending_reasons.CAN_NOT_START} it"
    )
    window = pending_reasons.Reason(
        pending_reasons.ReasonCode.RESERVED, "nodes that it needs are reserved"
    )
    assert pending_reasons.in_vain([never, window])
    assert not pending_reasons.in_vain([window])
