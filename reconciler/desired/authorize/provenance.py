"""Authorizes the changes of a revision, commit by commit and object by object.

The commits from the revision in force to a new head come in, the oldest first. Each is judged for
its difference to the one before, by the Access and the mode before it, so that no commit authorizes
itself. Objects whose last change nobody with the right has signed go out (they stay as in force),
and the approvals that count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from reconciler.desired.authorize import authority, commit_walk, signatures, trust_state
from reconciler.desired.documents import document_reader, object_changes
from reconciler.desired.git import source
from reconciler.model.documents import cluster_spec, queue_spec
from reconciler.model.policy import access

APPROVE = "Muster-Approve"
SUBMITTER = "Muster-Submitter"
#: Below this folder the controller may change jobs for people, and nowhere else.
JOBS_FOLDER = "jobs"
#: How often one walk stops on its way.
STOPS_MAX = 100


class Provenance:
    """A walker along the commits of one repository. Close it when done."""

    def __init__(self, repository: source.GitSource, clock: Callable[[], float]) -> None:
        self._source = repository
        self._clock = clock
        self._verifier = signatures.Verifier(repository)
        self._touched = object_changes.Touched(repository, dict)
        self._before = commit_walk.WalkStart()
        self._places: dict[str, dict[str, str]] = {}
        #: Whose a job is as of the last commit that counts; None: it is gone.
        self._holders: dict[str, _Holder | None] = {}
        #: The parent of each queue as of the last commit that counts.
        self._parents: Mapping[str, str | None] = {}

    def close(self) -> None:
        """Forget the keys."""
        self._verifier.close()

    def walk(
        self,
        line: Sequence[source.Commit],
        trust: trust_state.Trust,
        before: commit_walk.WalkStart,
        *,
        whole: bool = False,
    ) -> commit_walk.CommitWalk:
        """Walk along ``line``, the oldest first.

        Args:
            line: commits from the last revision to the new one.
            trust: state at the last revision.
            before: state in force there.
            whole: walk to the end even past a commit that changes the authority.

        Raises:
            GitError: a commit cannot be read, or git cannot verify at all.
        """
        approvals: list[str] = []
        signers: dict[str, str] = {}
        in_force = before.measure
        unasked = trust.mode == "off" and (in_force is None or in_force.mode == "off")
        if unasked and not self._turns_on(line):
            return commit_walk.CommitWalk(
                trust, tuple(one for commit in line for one in commit.trailer(APPROVE))
            )
        self._before, self._holders, self._parents = before, {}, before.parents
        self._touched = object_changes.Touched(self._source, before.by_path)
        self._places = {label: dict(files) for label, files in before.places.items()}
        counted: set[str] = set()  # what is other than in force, or than at the last stop
        stops: list[commit_walk.RequiredStop] = []
        earlier = commit_walk.RequiredStop("", trust)
        for commit in line:
            parent, parents = trust, self._parents  # what held before, whatever it makes of it
            asked = self._asked(commit, trust, in_force)
            changes = self._touched.changes(commit)
            self._follow(changes)
            approved = self._approvals(commit, trust, in_force)
            approvals += approved
            if asked is None:
                counted.update(changes)
                for label, files in changes.items():
                    trust = self._renewed(trust, label)
                    self._place(
                        label,
                        [one for _, new in files.values() for one in self._touched.of(label, new)],
                    )
            else:
                signers[commit.id] = asked.who
                for label, files in changes.items():
                    trust = self._judged(trust, commit, label, files, asked)
                denied = trust.refused(changes)
                if denied & counted and len(stops) < STOPS_MAX:
                    stops.append(earlier)
                    counted.clear()
                elif denied & counted and not whole:  # the next walk goes on, with new stops
                    del signers[commit.id], approvals[len(approvals) - len(approved) :]
                    told = tuple(approvals), signers, tuple(stops)
                    return commit_walk.CommitWalk(earlier.trust, *told, until=earlier.revision)
                counted |= changes.keys() - denied
            earlier = commit_walk.RequiredStop(commit.id, trust)
            trusts = (trust.mode, trust.documents) != (parent.mode, parent.documents)
            if trusts:
                in_force = None
            moves = asked is not None and self._parents != parents
            settles = before.waits and bool(approved)
            if (trusts or moves or settles) and commit is not line[-1] and not whole:
                return commit_walk.CommitWalk(
                    trust, tuple(approvals), signers, tuple(stops), commit.id
                )
        return commit_walk.CommitWalk(trust, tuple(approvals), signers, tuple(stops))

    def _asked(
        self,
        commit: source.Commit,
        trust: trust_state.Trust,
        in_force: authority.Authority | None,
    ) -> authority.AuthorityQuery | None:
        """Return the identity of a commit and its authority; None: nothing is required of it."""
        found: authority.AuthorityQuery | None = None
        for one in reversed(authority.of_all(authority.of_trust(trust), in_force)):
            signer = self._signer(commit, one.known, self._clock())
            early = None
            if isinstance(signer, signatures.SignatureRefusal) and signer.until is not None:
                early = self._signer(commit, one.known, commit.at)
            mode = authority.stricter(one.mode, found.mode) if found else one.mode
            found = authority.AuthorityQuery(signer, mode, one.known, self._parents, early, found)
        return found

    def _approvals(
        self,
        commit: source.Commit,
        trust: trust_state.Trust,
        in_force: authority.Authority | None,
    ) -> list[str]:
        """Return the digests that a commit approves, if its signer may."""
        asked = commit.trailer(APPROVE)
        measure = in_force or authority.of_trust(trust)
        if not asked or measure.mode != "required":
            return asked
        signer = self._signer(commit, measure.known, self._clock())
        if isinstance(signer, signatures.SignatureRefusal):
            return []
        return asked if access.of_approval(measure.known, signer.who).allowed else []

    def signers(self, commit: source.Commit, trust: trust_state.Trust) -> dict[str, str]:
        """Return who signed a commit that nothing leads to; as ``commit_walk.CommitWalk.signers``.

        Raises:
            GitError: it cannot be read, or git cannot verify at all.
        """
        if trust.mode == "off":
            return {}
        found = self._signer(commit, trust.whole(), self._clock())
        return {commit.id: "" if isinstance(found, signatures.SignatureRefusal) else found.who}

    def _turns_on(self, line: Sequence[source.Commit]) -> bool:
        """Return True if a document about verification changes on the way.

        Without verification nobody asks who signed. If a commit turns it on, later ones must be
        signed, even if one of them turns it off again.
        """
        return any(commit.parent and self._says_how(commit) for commit in line)

    def _says_how(self, commit: source.Commit) -> bool:
        blobs = [new for _, _, new in self._source.differences(commit.parent, commit.id) if new]
        return any(
            isinstance(document.part, cluster_spec.ClusterDocument)
            and document.part.spec.verification.mode != "off"
            for data in self._source.blobs(blobs)
            if b"verification" in data
            for document in document_reader.read(data).documents
        )

    def _follow(self, changes: Mapping[str, Mapping[str, object_changes.Pair]]) -> None:
        """Update the files that trusted kinds are written in."""
        for label, files in changes.items():
            if trust_state.kind(label) not in trust_state.TRUSTED_KINDS:
                continue
            places = self._places.setdefault(label, {})
            for path, (_, new) in files.items():
                readable = self._touched.all_readable((new,))
                if new is not None and (self._touched.of(label, new) or not readable):
                    places[path] = new
                else:
                    places.pop(path, None)

    def _renewed(self, trust: trust_state.Trust, label: str) -> trust_state.Trust:
        """Return the trust after ``label`` is as it is written now, in all its files.

        Files changed without the right count as unchanged. If an object is written twice, nobody
        can tell which is meant: the trust stays until one of the two is gone. It also stays while
        the object may be in an unreadable file.
        """
        kind = trust_state.kind(label)
        if kind not in trust_state.TRUSTED_KINDS:
            return trust
        clusters = [one for one in self._places if trust_state.kind(one) == "Cluster"]
        alike = clusters if kind == "Cluster" else [label]
        places = [
            (one, blob)
            for one in dict.fromkeys([*alike, label])
            for blob in self._counting(trust, one).values()
            if blob is not None
        ]
        self._touched.fill(blob for _, blob in places)
        if any(not self._touched.of(one, blob) for one, blob in places):
            return trust
        written = [document for one, blob in places for document in self._touched.of(one, blob)]
        if not written:
            return trust.renewed(label, None)
        if len(written) > 1 or written[0].part is None:
            return trust
        return trust.renewed(written[0].label, written[0].part)

    def _counting(self, trust: trust_state.Trust, label: str) -> dict[str, str | None]:
        """Return the files, with their blobs, in which somebody with the right wrote an object."""
        standing = trust.denied.get(label)
        counted = standing.counted if standing is not None and standing.binds else {}
        return {**self._places.get(label, {}), **counted}

    def _signer(self, commit: source.Commit, known: access.Access, now: float) -> authority.Signed:
        """Return the identity of a commit at ``now``."""
        found = self._verifier.verify(commit, known, now)
        if isinstance(found, signatures.SignatureRefusal):
            return found
        who = found.email
        if found.acts == "submitter":
            named = commit.trailer(SUBMITTER)
            if len(named) != 1:
                return signatures.SignatureRefusal(
                    "no-submitter",
                    f"it is signed with the key of {who} and has {len(named)} lines {SUBMITTER}; "
                    "one is expected",
                )
            who = named[0]
        elif found.acts == "author":
            who = commit.author
        if who not in known.identities:
            return signatures.SignatureRefusal(
                "unknown-person", f"{who} is nobody that Access knows"
            )
        return authority.Signer(who, found.acts)

    def _judged(
        self,
        trust: trust_state.Trust,
        commit: source.Commit,
        label: str,
        files: dict[str, object_changes.Pair],
        asked: authority.AuthorityQuery,
    ) -> trust_state.Trust:
        """Return the trust after a commit has changed one object in some files.

        As long as an object is denied, its changes add up: the right to everything that differs
        from the state in force is required, so that a second change does not launder the first.
        Valid changes in between are the new reference: reverting them is a change as well.
        """
        prior = trust.denied.get(label)
        if prior is not None and not prior.binds and asked.mode == "required":
            prior = None  # what was only told of is in force
        standing = prior or trust_state.Denial(
            authority.problem(asked.mode, commit, label, "", None)
        )
        before = {path: pair[0] for path, pair in files.items()} | standing.before
        after = standing.after | {path: pair[1] for path, pair in files.items()}
        counted = before | standing.counted
        self._touched.fill((*before.values(), *after.values(), *counted.values()))
        change = self._difference(label, before, after)
        why = self._refusal(asked, label, change)
        move = self._move(label, files)
        problem = standing.problem
        if why is None and move is not None and move[0] in standing.unanswered:
            # Who moves it does not answer for what it says: what is denied has a new place.
            old, new = move
            problem = msgspec.structs.replace(problem, path=new)
            if not self._touched.of(label, counted[new]):
                counted |= {new: counted[old], old: None}
            if not self._touched.of(label, before[new]):
                before |= {new: before[old], old: None}
        elif why is None:
            counted |= self._answered(label, files.keys(), after)
        unanswered = {p for p in after if not self._touched.same(label, counted[p], after[p])}
        mine = [path for path in files if path in unanswered]
        if why is not None and mine:
            holding = [path for path in mine if self._touched.of(label, after[path])]
            problem = authority.problem(asked.mode, commit, label, max(holding or mine), why)
        denied = {name: one for name, one in trust.denied.items() if name != label}
        if unanswered:
            timed = None
            if prior is None and why is not None and why.until and asked.early is not None:
                early = msgspec.structs.replace(asked, signer=asked.early, also=None)
                if self._refusal(early, label, change) is None:
                    timed = trust_state.Timed(commit.id, why.until)
            denied[label] = trust_state.Denial(
                problem, before, after, tuple(sorted(unanswered)), timed, counted
            )
        trust = msgspec.structs.replace(trust, denied=denied)
        if not unanswered or asked.mode == "warn":
            self._hold(label, change, after.values())
            self._place(label, change.after)
            gone = not any(self._touched.of(label, blob) for blob in after.values())
            if change.paths or asked.mode == "warn" or not gone:
                trust = self._renewed(trust, label)
        elif why is None:
            trust = self._renewed(trust, label)
        return trust

    def _answered(
        self, label: str, files: Iterable[str], after: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """Return the files that the signer of a change answers for, deletions included."""
        found = {path: after[path] for path in files}
        if any(self._touched.of(label, blob) for blob in found.values()):
            found |= {p: blob for p, blob in after.items() if not self._touched.of(label, blob)}
        return found

    def again(
        self, head: str, trust: trust_state.Trust, before: commit_walk.WalkStart
    ) -> trust_state.Trust:
        """Judge again, once, a change that only a clock refused that has been set back since.

        It counts if its signer may by the present Access too. ``head``: the revision in force,
        which its commit must lead to.

        Raises:
            GitError: a commit cannot be read, or git cannot verify at all.
        """
        denied = dict(trust.denied)
        self._before, self._holders, self._parents = before, {}, before.parents
        signed: dict[str, authority.AuthorityQuery | None] = {}
        for label, (sha, one) in trust.due(self._clock()).items():
            if sha not in signed:
                follows = self._source.descends(head, sha)
                commit = self._source.commit(sha) if follows else None
                signed[sha] = self._asked(commit, trust, before.measure) if commit else None
            denied[label] = msgspec.structs.replace(one, timed=None)
            asked = signed[sha]
            if asked is None:
                continue
            self._touched.forget()
            self._touched.fill((*one.before.values(), *one.after.values()))
            change = self._difference(label, one.before, one.after)
            if self._refusal(asked, label, change) is None:
                del denied[label]
        return msgspec.structs.replace(trust, denied=denied)

    def _hold(
        self, label: str, change: object_changes.ObjectChange, blobs: Iterable[str | None]
    ) -> None:
        """Record the owner of a job, from a change that counts on."""
        specs = object_changes.jobs_of(change.after)
        if specs:
            queues, owners = zip(*specs, strict=True)
            self._holders[label] = _Holder(queues, owners)
        elif change.paths and not change.after and self._touched.all_readable(blobs):
            self._holders[label] = None

    def _place(self, label: str, written: Iterable[document_reader.Document]) -> None:
        """Record the parent of a queue, from a change that counts on."""
        parts = [one.part for one in written]
        name = label.removeprefix("Queue/")
        for part in parts:
            if isinstance(part, queue_spec.QueueDocument):
                self._parents = {**self._parents, name: part.spec.parent}

    def _holder(self, label: str) -> "_Holder | None":
        """Return the owner of a job whose document cannot be read."""
        if label in self._holders:
            return self._holders[label]
        standing = self._before.jobs.get(label.removeprefix("Job/"))
        return _Holder((standing.queue,), (standing.owner,)) if standing is not None else None

    def _difference(
        self, label: str, before: Mapping[str, str | None], after: Mapping[str, str | None]
    ) -> object_changes.ObjectChange:
        """Return all differences of an object."""
        paths = tuple(
            p for p in sorted(after) if not self._touched.same(label, before[p], after[p])
        )
        sides = (
            tuple(document for path in paths for document in self._touched.of(label, side[path]))
            for side in (before, after)
        )
        return object_changes.ObjectChange(paths, *sides)

    def _move(self, label: str, files: dict[str, object_changes.Pair]) -> tuple[str, str] | None:
        """Return the old and new file if a commit only moves an object."""
        left = [path for path, (old, _) in files.items() if self._touched.of(label, old)]
        come = [path for path, (_, new) in files.items() if self._touched.of(label, new)]
        if len(left) != 1 or len(come) != 1 or left == come:
            return None
        if not self._touched.same(label, files[left[0]][0], files[come[0]][1]):
            return None
        return left[0], come[0]

    def _refusal(
        self, asked: authority.AuthorityQuery, label: str, change: object_changes.ObjectChange
    ) -> signatures.SignatureRefusal | None:
        """Return why a change of an object does not count; None if it does."""
        why = self._refusal_by(asked, label, change)
        if why is not None or asked.also is None:
            return why
        why = self._refusal_by(asked.also, label, change)
        return why and signatures.SignatureRefusal(
            why.rule, f"{why.message}, by the Access in force"
        )

    def _refusal_by(
        self, asked: authority.AuthorityQuery, label: str, change: object_changes.ObjectChange
    ) -> signatures.SignatureRefusal | None:
        """Return why it does not count under one authority."""
        signer = asked.signer
        if isinstance(signer, signatures.SignatureRefusal):
            return signer
        if signer.acts == "submitter" and not self._is_submission(label, change):
            return signatures.SignatureRefusal(
                "not-a-submission",
                "the controller's key counts for jobs below "
                f"{self._jobs_folder} and for nothing else; commit it yourself",
            )
        decision = self._decision(signer.who, label, change, asked)
        if decision.allowed:
            return None
        return signatures.SignatureRefusal("not-allowed", decision.why)

    def _decision(
        self,
        who: str,
        label: str,
        change: object_changes.ObjectChange,
        asked: authority.AuthorityQuery,
    ) -> access.Decision:
        """Decide if somebody may change an object like this.

        A job whose document was unreadable before still has an owner: the right to its last
        readable version is required.
        """
        if label.startswith("Job/"):
            before = object_changes.jobs_of(change.before)
            pairs = [*before, *object_changes.jobs_of(change.after)]
            queues = [queue for queue, _ in pairs]
            owners = [owner for _, owner in pairs]
            holder = None if before else self._holder(label)
            if holder is not None:
                queues += holder.queues
                owners += holder.owners
            return access.of_job(asked.known, who, queues, owners, asked.parents)
        verb: access.Verb = "drain" if object_changes.only_drains(change) else "change"
        return access.of_object(asked.known, who, verb, label)

    @property
    def _jobs_folder(self) -> str:
        prefix = f"{self._source.sub_path}/" if self._source.sub_path else ""
        return f"{prefix}{JOBS_FOLDER}/"

    def _is_submission(self, label: str, change: object_changes.ObjectChange) -> bool:
        return label.startswith("Job/") and all(
            path.startswith(self._jobs_folder) for path in change.paths
        )


class _Holder(msgspec.Struct, frozen=True):
    """Queues and owner of a job."""

    queues: tuple[str, ...]
    owners: tuple[str, ...]
