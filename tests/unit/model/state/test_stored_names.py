"""Names of stored fields, which stay when code renames them."""

import msgspec

from reconciler.model.state import records


def test_observed_state_is_stored_under_its_first_names() -> None:
    stored = {"look_at", "promised", "standing", "recollection", "aside"}
    assert stored < set(msgspec.to_builtins(records.Observed()))
    before = msgspec.msgpack.encode({"promised": {"job": 2}, "look_at": 7.0})
    found = msgspec.msgpack.decode(before, type=records.Observed)
    assert (found.nominations, found.forget_at) == ({"job": 2}, 7.0)
