"""A live controller tells people, and nobody else, of their own jobs by Slack, mail and webhook."""

import datetime as dt
import email
import email.policy
import json
import re
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.model.values import times
from reconciler.notifications import messages
from reconciler.operations import own_ca, subscription_file
from reconciler.operations.audit import access_audit
from reconciler.operations.backup import backup_folder
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.local import free_ports
from reconciler.operations.tokens import token_changes
from tests.integration import beds
from tests.unit.notifications import test_delivery

ADA, BOB = "tester@example.org", "bob@example.org"


class MailReceiver(socketserver.ThreadingTCPServer):
    """A mail server on loopback that takes what comes by STARTTLS, after a login."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, tls: Path) -> None:
        super().__init__(("127.0.0.1", 0), _MailSession)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(tls / "server.pem", tls / "server.key")
        self.got: list[tuple[list[str], str]] = []
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class _MailSession(socketserver.BaseRequestHandler):
    server: MailReceiver

    def finish(self) -> None:
        self.request.close()

    def handle(self) -> None:
        """Answer as little as a client needs; mail counts only by TLS and after a login."""
        stream = self.request.makefile("rwb", 0)
        secured = logged_in = False
        receivers: list[str] = []
        stream.write(b"220 test\r\n")
        while line := stream.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"EHLO":
                more = b"250 AUTH PLAIN" if secured else b"250 STARTTLS"
                stream.write(b"250-test\r\n" + more + b"\r\n")
            elif word == b"STARTTLS":
                stream.write(b"220 go\r\n")
                self.request = self.server.context.wrap_socket(self.request, server_side=True)
                stream, secured = self.request.makefile("rwb", 0), True
            elif word == b"AUTH":
                logged_in = line.split()[-1] == b"AHVzZXIAczNjcmV0"  # user, s3cret
                stream.write(b"235 ok\r\n" if logged_in else b"535 no\r\n")
            elif word == b"RCPT":
                receivers.append(line.decode().split("<")[1].split(">")[0])
                stream.write(b"250 ok\r\n")
            elif word == b"DATA":
                stream.write(b"354 go\r\n")
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += stream.readline()
                if secured and logged_in:
                    self.server.got.append((receivers, text.removesuffix(b".\r\n").decode()))
                stream.write(b"250 ok\r\n")
            elif word == b"QUIT":
                stream.write(b"221 bye\r\n")
                return
            else:
                stream.write(b"250 ok\r\n")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    own_ca.init(folder, ["localhost", "127.0.0.1"], dt.datetime.now(dt.UTC))
    return folder


@pytest.fixture
def receiver(tls: Path) -> Iterator[test_delivery.Receiver]:
    made = test_delivery.Receiver(tls)
    yield made
    made.close()


@pytest.fixture
def mail(tls: Path) -> Iterator[MailReceiver]:
    made = MailReceiver(tls)
    yield made
    made.close()


@pytest.fixture
def bed(
    tmp_path: Path,
    tls: Path,
    receiver: test_delivery.Receiver,
    mail: MailReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[beds.Bed]:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls / "ca.pem"))
    folder = tmp_path / "mail"
    folder.mkdir(mode=0o700)
    login = folder / "login"
    login.touch(0o600)
    login.write_text("user:s3cret\n")
    host = receiver.url.removeprefix("https://")
    (tmp_path / "bed").mkdir()
    options = (
        *("--smtp", mail.place, "--smtp-from", "muster@example.org", "--smtp-login", str(login)),
        *("--notify-hosts", host),
    )
    with beds.Bed(tmp_path / "bed", nodes=1, options=options) as made:
        yield made


def as_bob(bed: beds.Bed) -> api_client.ApiClient:
    tokens = bed.cluster.state / "tokens"
    token, _ = token_changes.create(tokens, BOB, "user", None)
    path = bed.folder / "bob.token"
    path.touch(0o600)
    path.write_text(token)
    api = api_client.ApiClient(endpoints.Endpoint(bed.cluster.url, str(path)))
    bed.until(lambda: _is_known(api))
    return api


def _is_known(api: api_client.ApiClient) -> bool:
    try:
        api.get("/v1/identity")
    except api_client.ApiError as error:
        if error.status != 401:
            raise
        return False
    return True


def muster(bed: beds.Bed, *words: str, given: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *words],
        cwd=bed.folder,
        env=bed.environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def owned(name: str, owner: str, command: str) -> str:
    return beds.job(name, f"  owner: {owner}\n  command: ['{command}']\n  resources: {{cpu: 1}}")


def of_path(receiver: test_delivery.Receiver, path: str) -> list[dict[str, object]]:
    return [json.loads(body) for found, _, body in list(receiver.got) if found == path]


def test_people_are_told_of_their_own_jobs(
    bed: beds.Bed, receiver: test_delivery.Receiver, mail: MailReceiver
) -> None:
    secret = f"{receiver.url}/services/T0/B0/s3crets3cret"
    code, shown, said = muster(bed, "notify", "add", "chat", "--slack", "-", given=f"{secret}\n")
    assert (code, shown) == (0, ""), said
    code, _, said = muster(bed, "notify", "add", "post", "--email", "--when", "failed")
    assert code == 0, said
    code, key, said = muster(
        bed, "notify", "add", "hook", "--webhook", f"{receiver.url}/own", "--job", "train-*"
    )
    assert code == 0, said
    for name in ("chat", "post", "hook"):
        assert muster(bed, "notify", "test", name)[0] == 0
    assert "a test" in str(of_path(receiver, "/services/T0/B0/s3crets3cret")[0]["text"])
    assert mail.got[0][0] == [ADA]
    before = len(mail.got)

    bed.commit(
        {
            "jobs/bad.yaml": owned("train-bad", ADA, "false"),
            "jobs/good.yaml": owned("good", ADA, "true"),
            "jobs/bob.yaml": owned("train-bob", BOB, "false"),
        }
    )
    bed.until_state("train-bob", "Failed")
    bed.until(lambda: len(of_path(receiver, "/services/T0/B0/s3crets3cret")) >= 3)
    bed.until(lambda: len(mail.got) > before and len(of_path(receiver, "/own")) >= 2)
    texts = [str(one["text"]) for one in of_path(receiver, "/services/T0/B0/s3crets3cret")]
    assert any("good ended" in one for one in texts)
    assert any("train-bad failed" in one for one in texts)
    (letter,) = mail.got[before:]
    assert letter[0] == [ADA]
    read = email.message_from_string(letter[1], policy=email.policy.default)
    assert read["Subject"] == "Muster: train-bad failed"
    sent = read["Date"].datetime
    assert sent.tzinfo is not None, "-0000 says that nobody knows"
    assert abs((sent - dt.datetime.now(dt.UTC)).total_seconds()) < 600
    assert re.fullmatch(r"<[0-9a-f]{32}@example\.org>", read["Message-ID"])
    lines = read.get_content().splitlines()
    assert re.match(r"train-bad failed \(cluster [^,]+, queue [^,]+, run 1\): ", lines[0])
    assert lines[1:] == ["muster explain train-bad", "muster logs train-bad"]
    ids = [email.message_from_string(text)["Message-ID"] for _, text in mail.got]
    assert len(set(ids)) == len(ids)
    path, headers, body = [one for one in receiver.got if one[0] == "/own"][-1]
    expected = messages.signature(key.strip(), headers["Muster-Timestamp"], body)
    assert headers["Muster-Signature"] == expected, path
    assert [one["job"] for one in json.loads(body)["jobs"]] == ["train-bad"]
    # nothing of bob's job goes to anybody else
    everything = [*texts, letter[1], *(str(one) for one in of_path(receiver, "/own"))]
    assert not [one for one in everything if "train-bob" in one]
    # what is secret is in the file of subscriptions alone
    _, listed, _ = muster(bed, "notify", "list", "-o", "json")
    logs = [
        (bed.cluster.state / name).read_text()
        for name in ("controller.log", "server.log", access_audit.FILE, subscription_file.RESULTS)
    ]
    for one in (listed, *logs):
        assert "s3cret" not in one
        assert key.strip() not in one
    assert "adds notification chat: slack to https://127.0.0.1" in logs[2]
    assert (bed.cluster.state / subscription_file.FILE).stat().st_mode & 0o077 == 0


def test_everybody_has_their_own(bed: beds.Bed, receiver: test_delivery.Receiver) -> None:
    assert bed.api is not None
    with as_bob(bed) as bob:
        body = {"name": "me", "kind": "webhook", "url": f"{receiver.url}/bob"}
        before = times.format_time(time.time())
        added = bob.post("/v1/notifications", body)
        assert added["key"]
        assert bob.get("/v1/notifications")["asOf"] >= added["asOf"] >= before
    assert bed.get("/v1/notifications")["items"] == []
    with pytest.raises(api_client.ApiError, match="you have no notification"):
        bed.api.delete("/v1/notifications/me")
    with pytest.raises(api_client.ApiError, match="you have no notification"):
        bed.api.post("/v1/notifications/me/test", {})
    # a backup holds it
    backup_folder.save(
        f"sqlite:///{bed.cluster.state / 'store.db'}",
        bed.cluster.state,
        bed.folder / "backup",
        1.0,
    )
    state = bed.cluster.state / subscription_file.FILE
    assert (bed.folder / "backup" / subscription_file.FILE).read_bytes() == state.read_bytes()
    # whose token has gone is told nothing more
    token = next(
        one for one in token_changes.listed(bed.cluster.state / "tokens") if one.identity == BOB
    )
    token_changes.revoke(bed.cluster.state / "tokens", token.id)
    bed.commit({"jobs/bob.yaml": owned("late", BOB, "false")})
    bed.until_state("late", "Failed")
    bed.until(lambda: BOB not in state.read_text())
    assert of_path(receiver, "/bob") == []


def test_a_slow_receiver_holds_up_nobody(bed: beds.Bed, receiver: test_delivery.Receiver) -> None:
    assert bed.api is not None
    host = receiver.url.removeprefix("https://")
    for name, path in (("slow", "/slow"), ("fast", "/fast")):
        url = f"https://{host}{path}"
        bed.api.post("/v1/notifications", {"name": name, "kind": "webhook", "url": url})
    receiver.answer = threading.Event()
    receiver.held = "/slow"
    bed.api.post("/v1/notifications/slow/test", {})
    bed.until(lambda: of_path(receiver, "/slow"))
    assert muster(bed, "notify", "test", "fast")[0] == 0
    receiver.answer.set()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--webhook", "https://10.0.0.1/x"], "no address of the internet"),
        (["--slack", "https://example.org/x"], "expected hooks.slack.com"),
        (["--webhook", "http://example.org/x"], "begins with https://"),
        ([], "expected one of --slack URL, --email and --webhook URL"),
        (["--email", "--when", "soon"], "expected some of ended, failed, evicted"),
    ],
)
def test_what_can_not_be_is_refused(plain: beds.Bed, words: list[str], expected: str) -> None:
    code, _, said = muster(plain, "notify", "add", "me", *words)
    assert code != 0
    assert expected in " ".join(said.split())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("plain"), nodes=1) as made:
        yield made


def test_a_controller_without_mail_says_who_may_set_it(plain: beds.Bed) -> None:
    code, _, said = muster(plain, "notify", "add", "me", "--email")
    assert code == 1
    assert "who runs it sets --smtp HOST:PORT and --smtp-from" in " ".join(said.split())


def test_a_test_to_a_private_address_says_why(plain: beds.Bed) -> None:
    port = free_ports.free_port()
    assert plain.api is not None
    # the name is public for all the server knows; its address is looked up when it is used
    url = f"https://private.localhost:{port}/x"
    plain.api.post("/v1/notifications", {"name": "in", "kind": "webhook", "url": url})
    code, _, said = muster(plain, "notify", "test", "in")
    assert code == 1
    assert "was not told: its host" in " ".join(said.split())
