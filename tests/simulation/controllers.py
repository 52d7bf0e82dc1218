"""Controllers of fault stories with a store each: real adoption, real claims, git in memory."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from reconciler.changes import lead_records
from reconciler.controller import adoption, lead_claim
from reconciler.controller.host import kept_lease
from reconciler.engines import assignment_proofs
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state, epochs, outcome, records
from reconciler.simulation.engine import simulated_cluster, simulated_controller

#: A lease of a state folder that is not known is kept in memory only.
_NOWHERE = Path("/nowhere")
_decode = msgspec.msgpack.Decoder(records.Observed).decode


class Store(msgspec.Struct, frozen=True):
    """What a store holds after a commit.

    Attributes:
        body: the records; empty: it knows no revision.
        view: the adoption as it is stored.
        identity: of the store; empty: it has none yet.
        copied: it is a copy of another one.
        cycle: number of the commit.
        epoch: in which it was led last.
        key: of proofs.
    """

    body: bytes = b""
    view: bytes = b""
    identity: str = ""
    copied: bool = False
    cycle: int = 0
    epoch: int = 0
    key: bytes = b""

    def observed(self) -> records.Observed:
        """Return the records."""
        return _decode(self.body) if self.body else records.Observed()


class Git:
    """The reference in git, as ``lead_records.RecordPlace`` has it."""

    name = "refs/notes/muster.lead"

    def __init__(self) -> None:
        self.record: lead_records.LeadRecord | None = None
        self._commit = 0
        self._was_run = False

    def read(self) -> tuple[lead_records.LeadRecord | None, str]:
        """Return the record and what holds it."""
        return self.record, str(self._commit or "")

    def write(self, record: lead_records.LeadRecord, before: str | None) -> str:
        """Replace the record, if it is the one before."""
        if before is not None and before != str(self._commit or ""):
            raise lead_records.OtherLeaderError(self.name)
        self.record, self._was_run = record, True
        self._commit += 1
        return str(self._commit)

    def was_run(self) -> bool:
        """Return True if a controller has led before."""
        return self._was_run

    def added_since(self, revision: str, head: str, until: float | None) -> frozenset[str]:
        """Return no files: what is new is shown, and nothing follows from it."""
        return frozenset()


class Controller:
    """A controller with a store of its own, from its start to its end.

    Args:
        cluster: in which it runs.
        git: holds the record of who leads.
        store: with which it starts.
        name: of its machine.
        acts: called before each of its cycles.
    """

    def __init__(
        self,
        cluster: simulated_cluster.SimulatedCluster,
        git: Git,
        store: Store,
        *,
        name: str,
        acts: Callable[["Controller"], None],
    ) -> None:
        empty = not store.body
        self.name = name
        self._cluster = cluster
        self._git = git
        self._acts = acts
        self._commits = store.cycle
        self.epoch = epochs.next_epoch(store.epoch, cluster.now)
        own, self._copied = store.identity, store.copied
        identity = self._identity(store)
        self.proofs = assignment_proofs.AssignmentProofs(store.key or name.encode())
        self.sim = cluster.start_controller(store.observed(), epoch=self.epoch, knowledge=self)
        self.adoption = self._adoption(adoption_state.decode(store.view), store, empty=empty)
        led = lead_claim.LedBy(identity, self.epoch, store.cycle, empty, name, name)
        self._stored_identity = own
        self.lease = kept_lease.KeptLease(_NOWHERE, "", lambda: cluster.now)
        self.claim = lead_claim.LeadClaim(
            git,
            led,
            self.lease,
            cycle=lambda: self._commits,
            tell=self._tell,
            clock=lambda: cluster.now,
        )
        #: When its process began.
        self.begun_at = cluster.now
        #: Since when nobody else can have led, and it leads.
        self.free_at = cluster.now
        self.runs = True
        self.paused_until = 0.0
        #: Number of its process.
        self._process = 1
        self._view: dict[str, bytes] = {adoption_state.VIEW: store.view}
        self.claim.begin(self._status())
        self._keep(self._process)

    def _identity(self, store: Store) -> str:
        """Return the identity of a store; a copy has none of its own before it was led."""
        is_own = store.identity and not store.copied
        return store.identity if is_own else f"{self.name}-{self.epoch}"

    def _adoption(
        self, kept: adoption_state.AdoptionState, store: Store, *, empty: bool
    ) -> adoption.Adoption:
        begun = adoption_state.at_start(kept, empty=empty, copied=store.copied)
        made = adoption.Adoption(begun, self.sim.memory, itertools.count(-3, -1))
        made.proof_key = self.proofs.key
        return made

    def _status(self) -> desired.SyncStatus:
        return desired.SyncStatus(sync="Synced", attempted_revision="", jobs_revision="")

    def _tell(self, verdict: lead_claim.LeadVerdict) -> None:
        was = self.adoption.state.blocked
        if verdict.above >= self.epoch:
            self.epoch = epochs.next_epoch(verdict.above, self._cluster.now)
            self.sim.epoch = self.epoch
        self.adoption.judge(verdict)
        if was and not verdict.blocked:
            self.free_at = self._cluster.now
        self.sim.due = True

    def _keep(self, process: int) -> None:
        """Renew the claim when that is due, as the thread that follows git does."""
        now = self._cluster.now
        if not self.runs or process != self._process:
            return
        if now < self.paused_until:
            again_s = self.paused_until - now
        else:
            self.claim.keep(self._status())
            again_s = max(1.0, self.claim.wait_s())
        self._cluster.at(now + again_s, lambda: self._keep(process))

    # -- what people do

    def crash(self) -> None:
        """Let another process go on from the store."""
        store = self.stored()
        self.epoch = epochs.next_epoch(self.epoch, self._cluster.now)
        self.sim.epoch = self.epoch
        self._process += 1
        self.begun_at = self._cluster.now
        self.sim.start_again()
        kept = adoption_state.decode(store.view)
        self.adoption = self._adoption(kept, store, empty=not store.body)
        led = lead_claim.LedBy(
            self._identity(store), self.epoch, store.cycle, not store.body, self.name, self.name
        )
        self.claim = lead_claim.LeadClaim(
            self._git,
            led,
            self.lease,
            cycle=lambda: self._commits,
            tell=self._tell,
            clock=lambda: self._cluster.now,
        )
        self.claim.begin(self._status())
        self._keep(self._process)

    def pause(self, seconds: float) -> None:
        """Let its machine stand still."""
        self.paused_until = self._cluster.now + seconds
        self.sim.pause(seconds)

    def stop(self, *, cleanly: bool) -> None:
        """End it; cleanly: it gives its lease back."""
        self.runs = False
        if cleanly:
            self.claim.release(self._status())

    def stored(self) -> Store:
        """Return what its store holds."""
        return Store(
            msgspec.msgpack.encode(self.sim.stored()) if self._commits else b"",
            self._view[adoption_state.VIEW],
            self._stored_identity,
            self._copied,
            cycle=self._commits,
            epoch=self.epoch,
            key=self.proofs.key,
        )

    def choose(self, choice: loop_messages.Adopt) -> bool:
        """Adopt; return False if that is not possible now."""
        wanted = self._cluster.wanted()
        taken = self.adoption.choose(choice, wanted, self._cluster.now)
        self.sim.due = True
        return taken

    # -- what the cluster asks of it

    @property
    def asks(self) -> bool:
        """True while nodes have to say what they hold."""
        return self.adoption.pending

    @property
    def leads(self) -> bool:
        """False while another controller leads."""
        return not self.adoption.state.blocked

    def begin(self, now: float) -> None:
        """Begin a cycle."""
        self._acts(self)
        self.adoption.begin(now)

    def in_force(self, desired_state: desired.Desired) -> desired.Desired:
        """Return what the cycle goes by."""
        return self.adoption.in_force(desired_state)

    def commit(self, result: outcome.Outcome) -> None:
        """Store what is known with the outcome."""
        self._commits += 1
        self._view = self.adoption.view
        if self.adoption.identity:
            self._stored_identity, self._copied = self.adoption.identity, False
        self.adoption.note_stored()

    def look(self, desired_state: desired.Desired, now: float) -> float | None:
        """Note what a cycle has found out."""
        return self.adoption.look(desired_state, now)

    def proof(self, attempt: str, node: str) -> str:
        """Return the proof of an assignment."""
        return self.proofs.of(attempt, node)

    def proven(self, node: str, proofs: Mapping[str, str]) -> tuple[str, ...]:
        """Return the attempts of which a node has a proof."""
        return self.proofs.proven(node, proofs)


_KNOWN: type[simulated_controller.StoreKnowledge] = Controller
