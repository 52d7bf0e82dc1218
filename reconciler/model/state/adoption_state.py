"""Jobs that wait to be adopted after a restore or the loss of a store, as stored and shown."""

import msgspec

from reconciler.model import desired
from reconciler.model.values import found_values, hostlists

#: Words instead of a list of nodes: those that nothing contradicts, or none.
TRUST_ALL, TRUST_NONE = "all", "none"
#: The most nodes that a message names.
_NAMED_MAX = 5
#: What is known of a job that waits: it came after all that was run, or it did not.
NEW, MAY_HAVE_RUN = "new", "may have run"
#: Why it is not known how a run ended: nothing proves the note, or there was a newer one.
UNPROVEN = "no key of this cluster proves the note in git"
OLDER = "the note in git is older than one that was written before"
#: Name of the stored view.
VIEW = "adoption"
#: Name of the stored view with the identity of the store.
IDENTITY = ".identity"
#: Name of the stored view with the key of proofs, so that a backup has it.
PROOF_KEY = ".proof-key"
#: Name of the stored view that marks a copy: the identity of the store that was copied.
COPIED = ".copied"


class ShownUnproven(msgspec.Struct, frozen=True):
    """A task that a node reports without a proof that it was assigned there.

    Attributes:
        attempt: id of the attempt.
        node: that reports it.
        state: of the attempt, as the node says.
        doubt: why it can hardly be true; empty: nothing says so.
    """

    attempt: str
    node: str
    state: str
    doubt: str = ""


class EphemeralRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run without a file in git, as the note in git has it.

    Attributes:
        name, key, owner, queue: of the run.
        submitted_at, ended_at: seconds since the epoch; None: it had not ended.
        state: in which it ended; empty: it had not.
        job: its document, of a run that had not ended; None: unknown, or it may have ended.
        doubt: why it is not known if it has ended; empty: the note says all that is known.
    """

    name: str
    key: str
    owner: str
    queue: str
    submitted_at: float
    state: str = ""
    ended_at: float | None = None
    job: desired.Job | None = None
    doubt: str = ""


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
        started: names of jobs that are to start, until that is stored.
        unheard: nodes that were not heard since the leader began.
        ready_at: when tasks on such nodes have ended by their leases, seconds since the epoch.
        unproven: what nodes report without a proof, until somebody has said which to believe.
        trusted: the nodes that were believed, until that is stored; None: nobody has said.
        told: an event says that this has begun.
        ephemeral: runs without a file in git that the note there knows and the store did not.
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
    unproven: tuple[ShownUnproven, ...] = ()
    trusted: tuple[str, ...] | None = None
    told: bool = False
    started: tuple[str, ...] = ()
    ephemeral: tuple[EphemeralRun, ...] = ()


_decode_state = msgspec.msgpack.Decoder(AdoptionState).decode


def decode(body: bytes | None) -> AdoptionState:
    """Return a stored state; earlier versions stored one word."""
    if not body or body == b"pending":
        return AdoptionState(pending=bool(body), why="the store was empty" if body else "")
    return _decode_state(body)


def at_start(kept: AdoptionState, *, empty: bool, copied: bool) -> AdoptionState:
    """Return the state with which a controller starts, before git was asked.

    Args:
        kept: as it was stored.
        empty: the store knows no revision.
        copied: the store is a copy of another one.
    """
    if copied:
        return AdoptionState(pending=True, why="the store was restored from a copy")
    if empty:  # nothing is in force before git has said if this is a new cluster
        return AdoptionState(pending=True)
    return kept


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


class DistrustError(ValueError):
    """Error: it can't be said so which nodes to believe; the message says how to."""


def trusted_nodes(state: AdoptionState, trust: str) -> frozenset[str]:
    """Return the nodes that are believed without a proof.

    Args:
        state: with what has no proof.
        trust: ``all``, ``none``, or a list of nodes; empty: nobody has said.

    Raises:
        DistrustError: somebody has to say, or what was said contradicts itself.
    """
    unproven = {one.node for one in state.unproven}
    if trust == TRUST_NONE or not (unproven or trust):
        return frozenset()
    if not trust:
        first = state.unproven[0]
        raise DistrustError(
            f"nothing was adopted: of {len(state.unproven)} tasks, such as {first.attempt} on "
            f"{first.node}, nothing proves that they were assigned there. The key in the state "
            "folder was lost, their agents are of an earlier version, or a node lies. To fix: say "
            f"which nodes to believe, --trust all, --trust none or --trust {_listed(unproven)}"
        )
    trusted = unproven if trust == TRUST_ALL else _named(unproven, trust)
    found: dict[str, str] = {}
    for one in state.unproven:
        if one.node not in trusted:
            continue
        task = one.attempt.rpartition(".")[0]  # of two tries of one task, one is over
        other = found.setdefault(task, one.node)
        doubt = one.doubt if trust == TRUST_ALL else ""
        if other != one.node:
            doubt = f"{other} reports it too"
        if doubt:
            raise DistrustError(
                f"nothing was adopted: {one.node} reports {one.attempt}, but {doubt}. To fix: name "
                f"the nodes to believe, of {_listed(unproven)}, with --trust"
            )
    return frozenset(trusted)


def _named(unproven: set[str], trust: str) -> set[str]:
    """Return the nodes of a list.

    Raises:
        DistrustError: it can't be read, or names another node.
    """
    try:
        named = set(hostlists.expand(trust))
    except hostlists.HostListError as error:
        raise DistrustError(f"nothing was adopted: --trust: {error}") from None
    if unknown := sorted(named - unproven):
        raise DistrustError(
            f"nothing was adopted: --trust: found {found_values.quote(unknown[0])}, expected "
            f"nodes that report tasks without a proof: {_listed(unproven) or 'there are none'}"
        )
    return named


def _listed(nodes: set[str]) -> str:
    names = sorted(nodes)
    return ",".join(names[:_NAMED_MAX]) + (",..." if len(names) > _NAMED_MAX else "")
