"""What a record of another leader in git may do to a controller."""

import pytest

from reconciler.changes import lead_records
from reconciler.controller import lead_claim

NOW = 1_000_000.0
OURS = lead_claim.LedBy("ours", 1, 5, empty=False, host="here", place="p")


@pytest.mark.parametrize(
    ("renewed_at", "until", "blocks"),
    [
        (NOW - 10, NOW + 290, True),
        (NOW - 10, NOW - 1, False),  # it was given back
        (NOW - 301, NOW + 1e9, False),  # no lease is longer than one of ours
        (NOW + 1e6, NOW + 1e9, False),  # nor does one begin later
    ],
)
def test_another_leader_blocks_for_one_lease(
    renewed_at: float, until: float, *, blocks: bool
) -> None:
    record = lead_records.LeadRecord("theirs", 9, 1, "there", "", "", renewed_at, until)
    verdict = lead_claim.judge(record, OURS, NOW)
    assert verdict.past
    assert bool(verdict.blocked) is blocks
