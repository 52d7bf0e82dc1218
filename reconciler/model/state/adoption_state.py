"""Jobs that wait to be adopted after a restore or the loss of a store, as stored and shown."""

import msgspec

#: Name of the stored view.
VIEW = "adoption"
#: Name of the stored view with the identity of the store.
IDENTITY = ".identity"
#: Name of the stored view that marks a copy: the identity of the store that was copied.
COPIED = ".copied"


class AdoptionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of an adoption.

    Attributes:
        pending: True until somebody has chosen, or nothing is left to choose.
        why: why the store may not know all that was run.
        blocked: why nothing may be led now; empty: it may.
        known: True once ``awaiting`` is filled, with the first revision.
        awaiting: what is known of each job that waits, by name: ``new`` or ``may have run``.
        alive: names of jobs that run on nodes and were taken over.
        ended: keys of runs declared over that are not stored yet.
        unheard: nodes that were not heard since the leader began.
        ready_at: when tasks on such nodes have ended by their leases, seconds since the epoch.
    """

    pending: bool = False
    why: str = ""
    blocked: str = ""
    known: bool = False
    awaiting: dict[str, str] = {}
    alive: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    ready_at: float = 0.0


_decode_state = msgspec.msgpack.Decoder(AdoptionState).decode


def decode(body: bytes | None) -> AdoptionState:
    """Return a stored state; earlier versions stored one word."""
    if not body or body == b"pending":
        return AdoptionState(pending=bool(body), why="the store was empty" if body else "")
    return _decode_state(body)


def why_not(state: AdoptionState, now: float) -> str:
    """Return why nobody may choose now; empty: somebody may."""
    if not state.pending:
        return "nothing waits to be adopted: the store knows its jobs"
    if state.blocked:
        return f"nothing can be adopted yet: {state.blocked}"
    if not state.known:
        return "nothing can be adopted yet: the repository is not read. To fix: try again"
    if state.unheard and now < state.ready_at:
        nodes = ", ".join(state.unheard[:5]) + (" and others" if len(state.unheard) > 5 else "")
        left_s = state.ready_at - now
        return (
            f"nothing can be adopted yet: tasks on {nodes}, not heard of, may still run. To fix: "
            f"let these nodes report, or wait {left_s:.0f} s until their leases have ended"
        )
    return ""
