"""Identities, keys and roles, and the one place that decides who may do what.

The loader asks for each object that a commit changes, the server for each call, ``muster access
can`` for people. An Access without roles allows everything to everybody who is known. With roles,
anything that no rule allows is refused. To act as somebody else is never allowed by default.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from reconciler.model.policy import queue_paths

#: ``submit``: add, change and remove one's own jobs in a queue. ``manage``: those of everybody.
#: ``read``: logs, metrics and checkpoints of everybody's jobs in a queue.
#: ``change``: add, change and remove structural objects. ``drain``: the overrides of a pool.
#: ``approve``: let changes apply that safety holds. ``snapshot``: take the records of everybody's
#: jobs away, as a plan made elsewhere needs them. ``impersonate``: name somebody else as a job's
#: owner, as whom it then runs. ``exec``: run commands in tasks of one's own jobs in a queue; in
#: those of others it takes ``impersonate`` of their owner as well.
Verb = Literal[
    "submit", "manage", "read", "change", "drain", "approve", "snapshot", "impersonate", "exec"
]
#: Whom a commit counts as that is signed with a key: its holder; the person that its
#: ``Muster-Submitter`` line names (the controller's own key); its author (a forge's key).
Acts = Literal["self", "submitter", "author"]
#: A member that everybody is who is known.
EVERYBODY = "*"
GROUP = "group:"
#: Priority of a job that says none, and the highest of a rule that says none.
DEFAULT_PRIORITY = 50


class Key(msgspec.Struct, frozen=True):
    """A public key: one line for SSH, armoured text for GPG."""

    kind: Literal["ssh", "gpg"]
    text: str
    valid_before: float | None = None


class Identity(msgspec.Struct, frozen=True):
    """One person or robot."""

    email: str
    groups: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    acts: Acts = "self"


class AccessRule(msgspec.Struct, frozen=True):
    """Verbs and their targets: queues for jobs, labels for structural objects, addresses for
    ``impersonate``. Jobs may say a ``priority`` up to ``max_priority``, or one of
    ``priority_classes`` (patterns).
    """

    verbs: tuple[Verb, ...]
    queues: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    max_priority: int = DEFAULT_PRIORITY
    priority_classes: tuple[str, ...] = ("*",)


class Role(msgspec.Struct, frozen=True):
    """Members of a role, and the rules that it grants."""

    name: str
    members: tuple[str, ...]
    rules: tuple[AccessRule, ...]


class Access(msgspec.Struct, frozen=True):
    """All ``Access`` documents together."""

    identities: dict[str, Identity] = {}
    roles: tuple[Role, ...] = ()

    def groups_of(self, who: str) -> tuple[str, ...]:
        """Return the groups of an identity. An unknown one has none."""
        known = self.identities.get(who)
        return () if known is None else known.groups

    def merged(self, other: "Access") -> "Access":
        """Return the union of both; an identity in both has everything that either says."""
        identities = dict(self.identities)
        for email, one in other.identities.items():
            known = identities.get(email)
            if known is not None:
                one = Identity(  # noqa: PLW2901 - what is put in is meant
                    email,
                    tuple(dict.fromkeys((*known.groups, *one.groups))),
                    (*known.keys, *one.keys),
                    known.acts if one.acts == "self" else one.acts,
                )
            identities[email] = one
        return Access(identities, self.roles + other.roles)


class JobOwners(msgspec.Struct, frozen=True):
    """Owners of a job's documents before and after a change; an empty one is nobody."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def others(self, who: str) -> tuple[set[str], set[str]]:
        """Return whose job it was, and whom the change names anew, without ``who`` and nobody."""
        ones = {"", who}
        return set(self.before) - ones, set(self.after) - set(self.before) - ones


class JobPriority(msgspec.Struct, frozen=True):
    """Priority that a job's document says: a number, the name of a class, or neither."""

    number: int | None = None
    class_name: str | None = None

    def __str__(self) -> str:
        """Return it as the document has it."""
        if self.class_name is not None:
            return f"priorityClass: {self.class_name}"
        return f"priority: {DEFAULT_PRIORITY if self.number is None else self.number}"

    @property
    def is_said(self) -> bool:
        """Return True if the document says any."""
        return self.number is not None or self.class_name is not None

    def within(self, rule: AccessRule) -> bool:
        """Return True if a rule lets a job say it."""
        if self.class_name is not None and not _any(rule.priority_classes, (self.class_name,)):
            return False
        return self.number is None or self.number <= rule.max_priority


class JobChange(msgspec.Struct, frozen=True):
    """A change of a job, as far as rights depend on it.

    Attributes:
        queues: its queues before and after, one or two.
        owners: its owners before and after.
        priorities: what it says anew of its priority.
    """

    queues: tuple[str, ...]
    owners: JobOwners
    priorities: tuple[JobPriority, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """Yes or no, with the rule that allows it or the reason that nothing does."""

    allowed: bool
    why: str


def roles_of(access: Access, who: str) -> list[str]:
    """Return the names of somebody's roles."""
    known = access.identities.get(who)
    return [] if known is None else [one.name for one in access.roles if _is_member(one, known)]


def of_queue(
    access: Access, who: str, verb: Verb, queue: str, above: Sequence[str] = ()
) -> Decision:
    """Decide if somebody may submit to a queue, or manage or read its jobs.

    Args:
        access: identities and roles.
        who: an address.
        verb: ``submit``, ``manage`` or ``read``; ``manage`` includes the others.
        queue: name of the queue.
        above: its ancestors: a rule for one of them holds for it too.
    """
    verbs = tuple(dict.fromkeys((verb, "manage")))
    names = (queue, *above)
    asked = _Asked(who, verb, f"Queue/{queue}", verbs)
    return _decide(access, asked, lambda rule: _any(rule.queues, names))


def of_any_job(access: Access, who: str) -> Decision:
    """Decide if there may be any job that somebody may change; a no holds for every job.

    The owner and the queue need not be known.
    """
    asked = _Asked(who, "submit", "any queue", ("submit", "manage"))
    return _decide(access, asked, lambda rule: bool(rule.queues))


def of_object(access: Access, who: str, verb: Verb, label: str) -> Decision:
    """Decide if somebody may change a structural object, or drain nodes of a pool.

    Args:
        access: identities and roles.
        who: an address.
        verb: ``change`` or ``drain``; ``change`` of a pool includes ``drain`` of its nodes.
        label: ``Kind/name``.
    """
    verbs = ("drain", "change") if verb == "drain" else (verb,)
    names = (label, label.split("/", 1)[0])
    asked = _Asked(who, verb, label, verbs)
    return _decide(access, asked, lambda rule: _any(rule.objects, names))


def of_kind(access: Access, who: str, verb: Verb, kind: str) -> Decision:
    """Decide if somebody may change all structural objects of a kind.

    Use it if the name of the object is unknown; a rule for one name does not count.

    Args:
        access: identities and roles.
        who: an address.
        verb: as for ``of_object``.
        kind: such as ``NodePool``.
    """
    verbs = ("drain", "change") if verb == "drain" else (verb,)
    asked = _Asked(who, verb, f"every {kind}", verbs)
    # of patterns with a slash only those match the empty name that ask for no character of it
    return _decide(access, asked, lambda rule: _any(rule.objects, (kind, f"{kind}/")))


def keeps(access: Access, who: str) -> bool:
    """Return True if somebody may change anything at all of Access or the Cluster."""
    asked = _Asked(who, "change", "Access or the Cluster", ("change",))

    def matches(rule: AccessRule) -> bool:
        named = any(pattern.startswith(("Access/", "Cluster/")) for pattern in rule.objects)
        return named or _any(rule.objects, ("Access", "Cluster", "Access/", "Cluster/"))

    return _decide(access, asked, matches).allowed


def of_approval(access: Access, who: str) -> Decision:
    """Decide if somebody may approve held changes."""
    asked = _Asked(who, "approve", "held changes", ("approve",))
    return _decide(access, asked, lambda _rule: True)


def of_snapshot(access: Access, who: str) -> Decision:
    """Decide if somebody may read the records of the whole cluster, commands of all jobs
    included.
    """
    asked = _Asked(who, "snapshot", "the records of all jobs", ("snapshot",))
    return _decide(access, asked, lambda _rule: True)


def of_impersonation(access: Access, who: str, owner: str) -> Decision:
    """Decide if somebody may name another person as the owner of a job.

    A rule has to say so: also an Access without roles allows it to nobody.

    Args:
        access: identities and roles.
        who: an address.
        owner: the address to name.
    """
    if not access.roles:
        return Decision(False, f"Access has no role that allows {who} to act as {owner}")
    asked = _Asked(who, "impersonate", owner, ("impersonate",))
    return _decide(access, asked, lambda rule: _any(rule.owners, (owner,)))


def of_exec(access: Access, who: str, queue: str, above: Sequence[str], owner: str) -> Decision:
    """Decide if somebody may run commands in tasks of a job.

    Args:
        access: identities and roles.
        who: an address.
        queue: the job's queue.
        above: its ancestors: a rule for one of them holds for it too.
        owner: as whom the job runs; empty for nobody.
    """
    asked = _Asked(who, "exec", f"Queue/{queue}", ("exec",))
    names = (queue, *above)
    decision = _decide(access, asked, lambda rule: _any(rule.queues, names))
    if decision.allowed and owner not in {"", who}:
        return of_impersonation(access, who, owner)
    return decision


def of_job(
    access: Access, who: str, change: JobChange, parents: Mapping[str, str | None]
) -> Decision:
    """Decide if somebody may add, change or remove a job.

    Args:
        access: identities and roles.
        who: an address.
        change: the change.
        parents: parent of each queue.
    """
    had, named = change.owners.others(who)
    verb: Verb = "manage" if had else "submit"
    decision = Decision(True, "nothing is asked")
    for queue in dict.fromkeys(change.queues):
        above = queue_paths.ancestors(queue, parents.get)
        decision = of_queue(access, who, verb, queue, above)
        if not decision.allowed:
            others = ", ".join(sorted(had | named))
            why = f"{decision.why}; it belongs to {others}" if others else decision.why
            return Decision(allowed=False, why=why)
        for priority in change.priorities:
            decision = of_priority(access, who, priority, queue, above)
            if not decision.allowed:
                return decision
    for owner in sorted(named):
        decision = of_impersonation(access, who, owner)
        if not decision.allowed:
            break
    return decision


def of_priority(
    access: Access, who: str, priority: JobPriority, queue: str, above: Sequence[str] = ()
) -> Decision:
    """Decide if somebody may give a job in a queue a priority.

    A job of higher priority evicts others, so a role has to say how far that goes.

    Args:
        access: identities and roles.
        who: an address.
        priority: the priority.
        queue: name of the queue.
        above: its ancestors: a rule for one of them holds for it too.
    """
    names = (queue, *above)
    asked = _Asked(who, "submit", f"{priority} in Queue/{queue}", ("submit", "manage"))
    decision = _decide(
        access, asked, lambda rule: _any(rule.queues, names) and priority.within(rule)
    )
    if decision.allowed:
        return decision
    field = "priorityClasses" if priority.class_name is not None else "maxPriority"
    return Decision(False, f"{decision.why}: the rule's {field} has to allow it")


class _Asked(msgspec.Struct, frozen=True):
    """A question to the rules; a rule with any of ``verbs`` allows it."""

    who: str
    verb: Verb
    what: str
    verbs: tuple[str, ...]


def _decide(access: Access, asked: _Asked, matches: Callable[[AccessRule], bool]) -> Decision:
    who, verb, what = asked.who, asked.verb, asked.what
    identity = access.identities.get(who)
    if not access.roles:
        return Decision(True, "Access has no roles, and so everybody may do everything")
    if identity is None:
        return Decision(False, f"{who} is not an identity in Access")
    mine = [role for role in access.roles if _is_member(role, identity)]
    for role in mine:
        if any(set(rule.verbs) & set(asked.verbs) and matches(rule) for rule in role.rules):
            return Decision(True, f"the role {role.name} allows {verb} on {what}")
    names = ", ".join(role.name for role in mine) or "none"
    return Decision(False, f"no role of {who} allows {verb} on {what} (roles of {who}: {names})")


def _is_member(role: Role, identity: Identity) -> bool:
    return any(
        member in {EVERYBODY, identity.email}
        or (member.startswith(GROUP) and member.removeprefix(GROUP) in identity.groups)
        for member in role.members
    )


def _any(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Return True if a pattern, in which ``*`` matches any text, matches a name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)
