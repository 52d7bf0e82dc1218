"""Commits that no git makes and every git takes: each is judged, and what comes after goes on."""

import pytest

from reconciler.desired.apply import loader
from tests.unit.desired import signing
from tests.unit.desired.authorize.test_provenance import Keys, base, keys, make, one, rules
from tests.unit.desired.repositories import Repository, git, job

__all__ = ["keys", "make", "one"]

PERSON = "M <m@x.org> 1700000000 +0000"


def odd(repository: Repository, *, header: str = "", committer: str = PERSON) -> str:
    """A commit of a job whose own text is written here, as somebody may write it who can push."""
    commit = repository.commit({"jobs/odd.yaml": job("odd", queue="research")})
    tree, parent = (git(repository.path, "rev-parse", commit + at) for at in ("^{tree}", "^"))
    lines = [f"tree {tree}", f"parent {parent}", f"author {PERSON}", f"committer {committer}"]
    text = "\n".join([*lines, *([header] if header else []), "", "odd", "", "more", ""])
    kind = ("-t", "commit", "-w", "--stdin", "--literally")
    made = git(repository.path, "hash-object", *kind, data=text.encode())
    git(repository.path, "update-ref", "refs/heads/main", made)
    return made


ARMOUR = "gpgsig -----BEGIN {0}-----\n {1}\n -----END {0}-----"


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        ("gpgsig garbage", "bad-signature"),
        ("gpgsig garbage\nnote BEGIN SSH SIGNATURE", "bad-signature"),
        ("gpgsig garbage\nnote -----BEGIN PGP SIGNATURE-----", "bad-signature"),
        (ARMOUR.format("SIGNED MESSAGE", "abcd"), "bad-signature"),
        (ARMOUR.format("PGP SIGNATURE", "AAAA"), "bad-signature"),
        (ARMOUR.format("PGP MESSAGE", "AAAA"), "bad-signature"),
        (ARMOUR.format("SSH SIGNATURE", "AAAA"), "bad-signature"),
        ("gpgsig-sha256 -----BEGIN SSH SIGNATURE-----", "unsigned-commit"),
    ],
)
def test_a_malformed_signature_is_refused_alone(
    header: str, rule: str, repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    odd(repository, header=header)
    value = one.load()
    assert set(value.refused) == {"odd"}
    assert rules(value) == [rule]
    repository.commit({"jobs/good.yaml": job("good", queue="research")})
    signing.sign(repository, keys["bob"])
    assert set(one.load().jobs) == {"a", "good"}


@pytest.mark.parametrize(
    "committer", ["M <m@x.org>", "garbage", "M <m@x.org> 99999999999999999999999999 +0000"]
)
@pytest.mark.parametrize("signed", [True, False])
def test_a_commit_without_a_date_is_read(
    committer: str, signed: bool, repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    if not signed:
        repository.commit({"cluster.yaml": base(keys)["cluster.yaml"].replace("required", "off")})
        signing.sign(repository, keys["ada"])
        assert one.load().status.sync == "Synced"
    odd(repository, committer=committer)
    value = one.load()
    assert ("odd" in value.jobs) is not signed
    repository.commit({"jobs/good.yaml": job("good", queue="research", owner="bob@x.org")})
    signing.sign(repository, keys["bob"])
    assert "good" in one.load().jobs


def test_no_commit_is_grafted_away(repository: Repository, one: loader.Loader, keys: Keys) -> None:
    """A file of the repository read in place that says of whom a commit is the child."""
    first = git(repository.path, "rev-parse", "main")
    repository.commit({"jobs/evil.yaml": job("evil", queue="research", owner="ada@x.org")})
    repository.commit({"jobs/good.yaml": job("good", queue="research")})
    head = signing.sign(repository, keys["bob"])
    (repository.path / "info").mkdir(exist_ok=True)
    (repository.path / "info" / "grafts").write_text(f"{head} {first}\n")
    value = one.load()
    assert set(value.jobs) == {"a", "good"}
    assert set(value.refused) == {"evil"}
