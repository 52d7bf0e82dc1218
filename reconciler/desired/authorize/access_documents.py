"""Converts ``Access`` documents to the access rules that decide."""

from reconciler.desired.authorize import ssh_keys
from reconciler.desired.documents.faults import FaultCollector
from reconciler.model.documents import access_spec
from reconciler.model.policy import access
from reconciler.model.values import found_values, times

_GPG = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


def access_of(spec: access_spec.AccessSpec, faults: FaultCollector) -> access.Access:
    """Return the access rules of one document, as far as it is valid."""
    identities: dict[str, access.Identity] = {}
    for index, one in enumerate(spec.identities):
        keys = [
            key
            for position, written in enumerate(one.keys)
            if (key := _key(written, faults, index, position)) is not None
        ]
        identity = access.Identity(one.email, tuple(one.groups), tuple(keys), one.acts)
        identities = (
            access.Access(identities).merged(access.Access({one.email: identity})).identities
        )
    roles = tuple(
        access.Role(
            role.name,
            tuple(role.members),
            tuple(_rule(rule) for rule in role.allow),
        )
        for role in spec.roles
    )
    return access.Access(identities, roles)


def _rule(written: access_spec.RuleSpec) -> access.AccessRule:
    """Return a rule of a role."""
    priority, classes = written.max_priority, written.priority_classes
    return access.AccessRule(
        tuple(written.verbs),
        tuple(written.queues),
        tuple(written.objects),
        tuple(written.owners),
        access.DEFAULT_PRIORITY if priority is None else priority,
        ("*",) if classes is None else tuple(classes),
    )


def _key(
    written: access_spec.KeySpec, faults: FaultCollector, index: int, position: int
) -> access.Key | None:
    path = ("spec", "identities", index, "keys", position)
    if (written.ssh is None) == (written.gpg is None):
        faults.add("exclusive-fields", "a key is either `ssh` or `gpg`", *path)
        return None
    until = None
    if written.valid_before is not None:
        try:
            until = times.parse_time(written.valid_before)
        except ValueError as error:
            faults.add(
                "bad-time",
                str(error),
                *path,
                "validBefore",
                found=found_values.quote(written.valid_before),
            )
            return None
    if written.ssh is not None:
        try:
            text = ssh_keys.parse(written.ssh)
        except ValueError as error:
            faults.add(
                "bad-key",
                str(error),
                *path,
                "ssh",
                found=found_values.quote(written.ssh[:40]),
                expected="a line such as `ssh-ed25519 AAAA…`, as in a .pub file",
            )
            return None
        return access.Key("ssh", text, until)
    text = (written.gpg or "").strip() + "\n"
    if not text.startswith(_GPG):
        faults.add("bad-key", f"an armoured public key begins with `{_GPG}`", *path, "gpg")
        return None
    return access.Key("gpg", text, until)


def shared_keys(found: access.Access) -> list[tuple[str, str]]:
    """Return pairs of identities that share a key, which could not tell who signed."""
    holders: dict[str, str] = {}
    pairs = []
    for identity in found.identities.values():
        for key in identity.keys:
            first = holders.setdefault(key.text, identity.email)
            if first != identity.email:
                pairs.append((first, identity.email))
    return pairs
