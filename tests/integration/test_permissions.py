"""Signed commits on a live cluster, with real keys: what is refused says why, the rest runs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from reconciler.changes.clone import working_clone
from reconciler.cli.changes import approve
from reconciler.operations.changes import change_requests, local_changes, targets
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.plan import cluster_snapshot
from reconciler.operations.validate import object_folders
from tests.integration import beds
from tests.unit.desired import signing

pytestmark = pytest.mark.needs("ssh-keygen")

ACCESS = """\
apiVersion: muster/v1
kind: Access
metadata: {{name: people}}
spec:
  identities:
    - {{email: ada@x.org, keys: [{ada}]}}
    - {{email: bob@x.org, groups: [research], keys: [{bob}]}}
    - {{email: old@x.org, groups: [research], keys: [{old}]}}
    - {{email: muster@x.org, acts: submitter, keys: [{muster}]}}
{more}
  roles:
    - name: admins
      members: [ada@x.org]
      allow:
        - {{verbs: [change, approve], objects: ["*"]}}
        - {{verbs: [manage], queues: ["*"]}}
    - name: researchers
      members: ["group:research"]
      allow: [{{verbs: [submit], queues: [research]}}]
---
apiVersion: muster/v1
kind: Queue
metadata: {{name: research}}
---
apiVersion: muster/v1
kind: Queue
metadata: {{name: ops}}
"""
TRUE = "  queue: {queue}\n  command: ['true']"


class Signed:
    """A cluster whose commits have to be signed."""

    def __init__(self, folder: Path) -> None:
        names = ("ada", "bob", "old", "muster", "mallory")
        self.keys = {name: signing.Key(folder / "keys", name) for name in names}
        self.bed = beds.Bed(folder, nodes=1)
        cluster = beds.POOL.format(nodes=1, cpus=4, gpus=0, lease="5s", silence="3s")
        cluster = cluster.replace(
            "nodeSilence: 3s", "nodeSilence: 3s, verification: {mode: required}"
        )
        self.bed.commit({"cluster.yaml": cluster, "access.yaml": self.access()})
        self.bed.cluster.options.signing_key = self.keys["muster"].path
        self.bed.start()
        tokens = self.bed.cluster.state / "tokens"
        tokens.write_text(tokens.read_text() + "bobs-token bob@x.org user\n")
        self.bed.cluster.kill_controller()
        self.bed.cluster.start_controller()
        self.bed.cluster.wait_ready()
        mine = folder / "bobs-token"
        mine.write_text("bobs-token\n")
        mine.chmod(0o600)
        self.mine = endpoints.Endpoint(self.bed.cluster.url, str(mine))
        self.bob = api_client.ApiClient(self.mine)

    def access(self, more: str = "") -> str:
        listed = {name: key.listed() for name, key in self.keys.items() if name != "old"}
        listed["old"] = self.keys["old"].listed("2025-01-01T00:00:00Z")
        return ACCESS.format(more=more, **listed)

    def commit(self, who: str, files: dict[str, str | None]) -> str:
        """Commit with somebody's key, and push."""
        bed = self.bed
        bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
        for name, text in files.items():
            path = bed.clone / name
            path.parent.mkdir(exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        bed.git("add", "--all", folder=bed.clone)
        options = self.keys[who].options if who else ()
        sign = ("-S",) if who else ()
        bed.git(*options, "commit", "--quiet", *sign, "-m", "change", folder=bed.clone)
        bed.git("push", "--quiet", "origin", "HEAD:main", folder=bed.clone)
        return bed.git("rev-parse", "HEAD", folder=bed.clone)

    def refusal(self, revision: str, label: str) -> tuple[str, str]:
        """Rule and message of what is refused of a revision."""

        def look() -> beds.Json:
            sync = self.bed.get("/v1/sync")["sync"]
            return sync["attemptedRevision"] == revision and [
                problem for problem in sync["problems"] if problem["object"] == label
            ]

        (found,) = self.bed.until(look)
        return found["rule"], found["message"]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    made = Signed(tmp_path_factory.mktemp("signed"))
    try:
        yield made
    finally:
        made.bob.close()
        made.bed.stop()


def job(name: str, queue: str = "research") -> dict[str, str | None]:
    return {f"jobs/{name}.yaml": beds.job(name, TRUE.format(queue=queue))}


def test_what_somebody_signs_who_may_runs(signed: Signed) -> None:
    revision = signed.commit("bob", job("good"))
    signed.bed.until_state("good", "Succeeded")
    items = signed.bed.until(
        lambda: [one for one in signed.bed.get("/v1/audit")["items"] if one["revision"] == revision]
    )
    (commit,) = items[0]["commits"]
    assert commit["author"] != commit["signer"] == "bob@x.org"


@pytest.mark.parametrize(
    ("who", "queue", "rule", "said"),
    [
        ("", "research", "unsigned-commit", "it has no signature"),
        ("mallory", "research", "unknown-key", "no identity has in the Access before it"),
        ("old", "research", "expired-key", "valid until 2025-01-01"),
        ("bob", "ops", "not-allowed", "no role of bob@x.org allows submit on Queue/ops"),
    ],
)
def test_what_does_not_count_says_why(
    signed: Signed, who: str, queue: str, rule: str, said: str
) -> None:
    name = f"bad-{who or 'nobody'}"
    revision = signed.commit(who, job(name, queue))
    assert signed.refusal(revision, f"Job/{name}")[0] == rule
    assert said in signed.refusal(revision, f"Job/{name}")[1]
    assert signed.bed.job(name)["state"] in {"Held", "Pending"}
    assert not signed.bed.job(name)["attempts"]
    assert [one["code"] for one in signed.bed.job(name)["reasons"]] == ["NotAllowed"]
    after = f"after-{who or 'nobody'}"
    signed.commit("bob", job(after))
    signed.bed.until_state(after, "Succeeded")


def test_who_submits_what_does_not_count_is_told_at_once(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_folders, "LEARN_S", 60.0)
    bed = signed.bed
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    bed.git("branch", "--quiet", "--set-upstream-to=origin/main", folder=bed.clone)
    endpoint = endpoints.Endpoint(bed.cluster.url, str(bed.cluster.state / "token"))

    def made(*changes: change_requests.Change) -> change_requests.ChangeResult:
        standing = object_folders.standing(endpoint)
        there = targets.ChangeTarget(
            clone=working_clone.Clone(bed.clone), endpoint=endpoint, standing=standing
        )
        (found,) = local_changes.carry_out(list(changes), there)
        return found

    done = made(change_requests.Submit(beds.job("told", TRUE.format(queue="research"))))
    assert done.message.startswith("submit not applied yet")
    assert f"commit {(done.commit or '')[:12]} changes it, and it has no" in done.withheld
    assert done.refused
    done = made(change_requests.Act("cancel", "told"))
    assert (done.withheld, done.refused) == ("", False), "as it was"


def test_a_commit_does_not_bring_its_own_key(signed: Signed) -> None:
    key = signed.keys["mallory"].listed()
    more = f"    - {{email: m@x.org, groups: [research], keys: [{key}]}}"
    revision = signed.commit("mallory", job("own-key") | {"access.yaml": signed.access(more)})
    assert signed.refusal(revision, "Job/own-key")[0] == "unknown-key"
    assert signed.refusal(revision, "Access/people")[0] == "unknown-key"
    revision = signed.commit("mallory", job("own-key-2"))
    assert signed.refusal(revision, "Job/own-key-2")[0] == "unknown-key"
    signed.commit("ada", {"access.yaml": signed.access()})


def test_the_api_goes_by_the_same_rules_and_its_commits_are_verified(signed: Signed) -> None:
    text = beds.job("by-api", TRUE.format(queue="research"))
    (made,) = signed.bob.post("/v1/jobs", content=text.encode(), kind="application/yaml")["items"]
    signed.bed.until_state("by-api", "Succeeded")
    signed.bed.git("fetch", "--quiet", "origin", folder=signed.bed.clone)
    message = signed.bed.git("log", "-1", "--format=%B", made["commit"], folder=signed.bed.clone)
    assert message.endswith("Muster-Submitter: bob@x.org")

    both = text.replace("by-api", "mine") + "---\n" + beds.job("theirs", TRUE.format(queue="ops"))
    with pytest.raises(
        api_client.ApiError, match=r"no role of bob@x\.org allows submit"
    ) as refused:
        signed.bob.post("/v1/jobs", content=both.encode(), kind="application/yaml")
    assert refused.value.refused
    assert str(refused.value).startswith("theirs: ")
    assert str(refused.value).endswith("; nothing was changed"), "of one request all or nothing"
    mine = text.replace("by-api", "mine")
    signed.bob.post("/v1/jobs", content=mine.encode(), kind="application/yaml")
    signed.bed.until_state("mine", "Succeeded")
    with pytest.raises(api_client.ApiError, match="allows drain on NodePool/virtual"):
        signed.bob.post(
            "/v1/changes", {"verb": "drain", "names": ["virtual-0"], "reason": "because"}
        )
    assert signed.bed.api is not None  # an administrator's token is above the roles, no further
    with pytest.raises(api_client.ApiError, match="pools are for people"):
        signed.bed.api.post(
            "/v1/changes", {"verb": "drain", "names": ["virtual-0"], "reason": "because"}
        )
    with pytest.raises(api_client.ApiError, match="allows approve"):
        signed.bob.post("/v1/changes", {"verb": "approve", "names": ["s" + "0" * 16 + "j0h0"]})


def test_what_the_controllers_own_verification_refuses_is_told_as_refused(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is somebody's, who may not: that is known once the commit has been looked at."""
    monkeypatch.setattr(object_folders, "LEARN_S", 60.0)
    as_submitter = "email: muster@x.org, acts: submitter"
    alone = signed.access().replace(as_submitter, "email: muster@x.org")
    unlisted = "\n".join(line for line in signed.access().splitlines() if as_submitter not in line)

    def in_force(access: str) -> None:
        revision = signed.commit("ada", {"access.yaml": access})
        signed.bed.until(
            lambda: signed.bed.get("/v1/sync")["sync"]["structureRevision"] == revision or None
        )

    def submitted(name: str) -> change_requests.ChangeResult:
        text = beds.job(name, TRUE.format(queue="research"))
        target = targets.ChangeTarget(endpoint=signed.mine)
        (done,) = local_changes.carry_out([change_requests.Submit(text)], target)
        return done

    in_force(alone)
    done = submitted("in-vain")
    assert done.message == "submit not applied yet"
    assert f"commit {(done.commit or '')[:12]} changes it, and no role of muster@x.org" in (
        done.withheld
    )
    assert done.refused
    in_force(unlisted)
    with pytest.raises(
        change_requests.ChangeError, match="is nobody's in the Access in force"
    ) as refused:
        submitted("never")
    assert refused.value.refused, "before it is committed, where that is known"
    in_force(signed.access())
    # no run of it is known, and yet its document says whose it is
    with pytest.raises(
        api_client.ApiError, match=r"there is no Job/in-vein .*; did you mean in-vain"
    ):
        signed.bob.post("/v1/changes", {"verb": "cancel", "names": ["in-vein"]})
    (cancelled,) = signed.bob.post("/v1/changes", {"verb": "cancel", "names": ["in-vain"]})["items"]
    assert cancelled["commit"]
    assert submitted("after-all").withheld == ""
    signed.bed.until_state("after-all", "Succeeded")


def test_a_job_through_the_api_is_of_whom_the_token_stands_for(signed: Signed) -> None:
    """Whatever git on the machine of who sends it says: carol's address is no right of bob's."""
    texts = [beds.job(name, TRUE.format(queue="research")) for name in ("of-token", "of-curl")]
    target = targets.ChangeTarget(endpoint=signed.mine)
    (made,) = local_changes.carry_out([change_requests.Submit(texts[0], "carol@x.org")], target)
    assert made.message == "submitted"
    signed.bob.post("/v1/jobs", content=texts[1].encode(), kind="application/yaml")
    for name in ("of-token", "of-curl"):
        signed.bed.until_state(name, "Succeeded")
        assert signed.bob.get(f"/v1/jobs/{name}")["job"]["owner"] == "bob@x.org"


def test_of_files_to_prune_those_of_others_stay_and_say_so(signed: Signed) -> None:
    own, others = job("bobs"), job("adas", "ops")
    signed.commit("bob", own)
    signed.commit("ada", others)
    for name in ("bobs", "adas"):
        signed.bed.until_state(name, "Succeeded")
    body = {"verb": "prune", "names": ["adas", "bobs"], "reason": "it ended long ago"}
    stays, goes = signed.bob.post("/v1/changes", body)["items"]
    assert (stays["status"], stays["commit"], goes["status"]) == (403, None, 200)
    assert stays["message"].startswith("its file stays: no role of bob@x.org allows submit on")
    assert (goes["message"], len(goes["commit"])) == ("", 40)
    signed.bed.until(
        lambda: [
            one
            for one in signed.bed.get("/v1/audit/access")["items"]
            if (one["action"], one["identity"], one["request"])
            == ("Forbidden", "bob@x.org", "prune adas")
        ]
    )


def test_what_also_stands_where_the_controllers_key_does_not_count_is_not_cancelled(
    signed: Signed,
) -> None:
    """That would be answered as done, and refused as a commit; as an override it can be done."""
    text = beds.job("copied", "  queue: research\n  command: [sleep, '600']")
    signed.bob.post("/v1/jobs", content=text.encode(), kind="application/yaml")
    signed.bed.until_state("copied", "Running")
    path = f"{signed.bed.clone}/jobs/copied.yaml"
    signed.bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=signed.bed.clone)
    copy = Path(path).read_text()
    revision = signed.commit("bob", {"team/copied.yaml": copy})
    signed.bed.until(
        lambda: signed.bed.get("/v1/sync")["sync"]["attemptedRevision"] == revision or None
    )
    with pytest.raises(
        api_client.ApiError, match=r"it stands in team/copied\.yaml, not below jobs/"
    ):
        signed.bob.post("/v1/changes", {"verb": "cancel", "names": ["copied"]})
    body = {"verb": "cancel", "names": ["copied"], "reason": "it is wrong", "for_s": 600}
    (made,) = signed.bob.post("/v1/overrides", body)["items"]
    assert made["commit"] is None
    signed.bed.until_state("copied", "Cancelled")
    signed.commit("bob", {"team/copied.yaml": None, "jobs/copied.yaml": None})


def copied(signed: Signed, name: str, where: str, **changed: str) -> None:
    """Let mallory write a job of bob's once more, and the controller refuse that."""
    signed.bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=signed.bed.clone)
    text = (signed.bed.clone / f"jobs/{name}.yaml").read_text()
    for found, there in changed.items():
        text = text.replace(found, there)
    revision = signed.commit("mallory", {where: text})
    assert signed.refusal(revision, f"Job/{name}")[0] == "unknown-key"


def written(signed: Signed, name: str) -> list[str]:
    """The files that hold a job."""
    signed.bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=signed.bed.clone)
    found = signed.bed.clone.rglob("*.yaml")
    listed = [one for one in found if f"name: {name}" in one.read_text()]
    return sorted(str(one.relative_to(signed.bed.clone)) for one in listed)


def test_a_refused_copy_of_a_job_does_not_keep_its_owner_from_changing_it(signed: Signed) -> None:
    def change(verb: str) -> None:
        body = {"verb": verb, "names": ["owned"], "reason": "mine"}
        (made,) = signed.bob.post("/v1/changes", body)["items"]
        assert made["status"] == 200, made

    text = beds.job("owned", "  queue: research\n  command: [sleep, '600']")
    signed.bob.post("/v1/jobs", content=text.encode(), kind="application/yaml")
    signed.bed.until_state("owned", "Running")
    copied(signed, "owned", "x/owned.yaml")
    change("rerun")
    signed.bed.until(lambda: signed.bed.job("owned")["run"] == 2 or None)
    assert written(signed, "owned") == ["jobs/owned.yaml"]
    copied(signed, "owned", "x/owned.yaml", research="ops")
    change("hold")
    copied(signed, "owned", "y/owned.yaml")
    copied(signed, "owned", "x/owned.yaml")
    change("cancel")
    assert written(signed, "owned") == []
    signed.bed.until_state("owned", "Cancelled")


def test_a_refused_change_of_a_job_does_not_keep_its_owner_from_ending_it(signed: Signed) -> None:
    text = beds.job("altered", "  queue: research\n  command: [sleep, '600']")
    signed.bob.post("/v1/jobs", content=text.encode(), kind="application/yaml")
    signed.bed.until_state("altered", "Running")
    copied(signed, "altered", "jobs/altered.yaml", **{"bob@x.org": "ada@x.org"})
    body = {"verb": "cancel", "names": ["altered"], "reason": "mine"}
    (made,) = signed.bob.post("/v1/changes", body)["items"]
    assert made["status"] == 200, made
    signed.bed.until_state("altered", "Cancelled")


@pytest.mark.parametrize("where", ["x/wanted-{}.yaml", "jobs/wanted-{}.yaml"])
@pytest.mark.parametrize("queue", ["research", "ops"])
def test_a_refused_document_does_not_take_the_name_of_a_job(
    signed: Signed, where: str, queue: str
) -> None:
    name = f"wanted-{queue}-{where[0]}"
    text = beds.job(name, TRUE.format(queue=queue))
    path = where.format(f"{queue}-{where[0]}")
    revision = signed.commit("mallory", {path: text})
    assert signed.refusal(revision, f"Job/{name}")[0] == "unknown-key"
    mine = text.replace("queue: ops", "queue: research")
    signed.bob.post("/v1/jobs", content=mine.encode(), kind="application/yaml")
    signed.bed.until_state(name, "Succeeded")
    assert written(signed, name) == [f"jobs/{name}.yaml"]


def test_who_may_not_submit_a_job_takes_out_nothing(signed: Signed) -> None:
    text = beds.job("others", TRUE.format(queue="ops"))
    revision = signed.commit("mallory", {"x/others.yaml": text})
    assert signed.refusal(revision, "Job/others")[0] == "unknown-key"
    with pytest.raises(api_client.ApiError, match="allows submit on Queue/ops"):
        signed.bob.post("/v1/jobs", content=text.encode(), kind="application/yaml")
    with pytest.raises(api_client.ApiError):
        signed.bob.post("/v1/changes", {"verb": "hold", "names": ["others"]})
    assert written(signed, "others") == ["x/others.yaml"]


def test_the_records_of_everybodys_jobs_are_for_who_may_have_them(signed: Signed) -> None:
    """Commands and settings of all jobs are among them; a plan that the controller makes is not."""
    with pytest.raises(api_client.ApiError) as refused:
        signed.bob.get("/v1/snapshot/records")
    assert "no role of bob@x.org allows snapshot on the records of all jobs" in str(refused.value)
    assert signed.bob.get("/v1/snapshot")["jobs"] is not None
    secret = beds.job("private", "  queue: ops\n  suspend: true\n  environment: {KEY: s3cret}")
    secret += "  command: ['true']\n"
    base = signed.commit("ada", {"jobs/private.yaml": secret})
    changed = secret.replace("s3cret", "s4cret").replace("ops", "research")
    head = signed.commit("ada", {"jobs/private.yaml": changed})
    signed.bed.until(lambda: signed.bed.get("/v1/sync")["sync"]["attemptedRevision"] == head)
    plan = signed.bob.get("/v1/plan", revision=head, base=base)
    (change,) = (one for one in plan["changes"] if one["name"] == "private")
    assert change["fields"]["queue"] == ["ops", "research"]
    assert change["fields"]["environment.KEY"] == ["(not shown)", "(not shown)"]
    assert "s3cret" in str(signed.bed.get("/v1/plan", revision=head, base=base))
    # and of what is wrong, nothing of what was found there
    wrong = changed.replace("s4cret", "48121")
    head = signed.commit("ada", {"jobs/private.yaml": wrong})
    signed.bed.until(lambda: signed.bed.get("/v1/sync")["sync"]["attemptedRevision"] == head)
    for path, query in (("/v1/plan", {"revision": head, "base": base}), ("/v1/sync", {})):
        told = str(signed.bob.get(path, **query))
        assert "write it in quotes" in told
        assert "48121" not in told
        assert "48121" in str(signed.bed.get(path, **query))
    whole = signed.bob.get("/v1/snapshot")
    assert "48121" not in str((whole["sync"], whole["jobs"]))
    signed.commit("ada", {"jobs/private.yaml": changed})
    # a plan goes without them, and still from what is in force
    signed.bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=signed.bed.clone)
    planned = subprocess.run(
        [
            str(Path(sys.executable).with_name("muster")), "plan", "HEAD",
            *("--server", signed.bob.url, "--token-file", str(signed.bed.folder / "bobs-token")),
        ],
        cwd=signed.bed.clone, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert planned.returncode in {0, 2, 3}, planned.stderr
    sync = signed.bed.get("/v1/sync")["sync"]
    assert planned.stdout.startswith(f"{sync['structureRevision'][:12]} -> ")
    told = "the plan leaves out running work: no role of bob@x.org allows snapshot on the records"
    assert planned.stderr.startswith(told)
    rule = "allow: [{verbs: [submit], queues: [research]}]"
    more = "allow: [{verbs: [submit], queues: [research]}, {verbs: [snapshot]}]"
    assert rule in signed.access()
    signed.commit("ada", {"access.yaml": signed.access().replace(rule, more)})

    def taken() -> bool:
        try:
            return bool(cluster_snapshot.fetch(signed.bob))
        except api_client.ApiError:
            return False

    signed.bed.until(taken)


def test_who_approves_what_he_may_not_is_told_so(
    signed: Signed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(object_folders, "LEARN_S", 60.0)
    bed = signed.bed
    text = (bed.clone / "cluster.yaml").read_text()
    guarded = text.replace("mode: required}", "mode: required}, sync: {approval: [Quota]}")
    signed.commit("ada", {"cluster.yaml": guarded})
    quota = (
        "apiVersion: muster/v1\nkind: Quota\nmetadata: {name: q}\n"
        "spec: {subject: {queue: ops}, jobs: {running: 5}}\n"
    )
    revision = signed.commit("ada", {"quota.yaml": quota})

    def held() -> list[beds.Json]:
        sync = bed.get("/v1/sync")["sync"]
        return sync["held"] if sync["attemptedRevision"] == revision else []

    (found,) = bed.until(held)
    endpoint = endpoints.Endpoint(bed.cluster.url, str(bed.cluster.state / "token"))
    standing = object_folders.standing(endpoint)
    there = targets.ChangeTarget(
        clone=working_clone.Clone(bed.clone), endpoint=endpoint, standing=standing
    )
    (done,) = local_changes.carry_out([change_requests.Act("approve", found["digest"])], there)
    assert done.message.startswith("approval does not count")
    assert done.withheld.startswith(
        f"{found['digest']} is still held: the signer of the commit may not"
    )
    assert done.refused
    token = str(bed.cluster.state / "token")
    with pytest.raises(typer.Exit) as left:
        approve.approve(found["digest"], clone=bed.clone, server=bed.cluster.url, token_file=token)
    assert left.value.exit_code == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "approval does not count" in told
    assert f"{found['digest']} is still held: the signer of the commit may not approve" in told
    revision = signed.commit("ada", {"quota.yaml": None, "cluster.yaml": text})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["structureRevision"] == revision or None)
