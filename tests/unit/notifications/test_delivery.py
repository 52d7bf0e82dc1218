"""Notices over real HTTP: what arrives, how signed; what is tried again, what is given up."""

import http.server
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.model import desired
from reconciler.notifications import (
    credentials,
    delivery,
    message_queue,
    messages,
    retry_rules,
)

REVISION = "a" * 40
WAIT_S = 60.0


class Receiver:
    """A server on loopback that answers with the given statuses, the last one for ever.

    ``tls``: folder with its certificate and key; None: plain HTTP. ``held``: the only path whose
    answers wait for ``answer``; empty: all.
    """

    def __init__(self, tls: Path | None = None) -> None:
        self.held = ""
        self.statuses: list[int] = [200]
        self.headers: dict[str, str] = {}
        self.answer: threading.Event | None = None
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.changed = threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.changed:
                    status = outer.statuses.pop(0) if len(outer.statuses) > 1 else outer.statuses[0]
                    outer.got.append((self.path, dict(self.headers.items()), body))
                    outer.changed.notify_all()
                if outer.answer is not None and outer.held in ("", self.path):
                    outer.answer.wait(WAIT_S)
                self.send_response(status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.pem", tls / "server.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = self.url.replace("http", "https", 1)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def wait(self, count: int) -> list[tuple[str, dict[str, str], bytes]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, WAIT_S), self.got
            return list(self.got)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "notify"
    made.mkdir(mode=0o700)
    (made / "key").write_text("s3cret\n")
    (made / "key").chmod(0o600)
    return made


Make = Callable[[], delivery.Notifier]


@pytest.fixture
def make(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(retry_rules, "WAIT_S_MIN", 0.02)
    made: list[delivery.Notifier] = []

    def _make() -> delivery.Notifier:
        one = delivery.Notifier(
            folder,
            tmp_path / "notified.json",
            clock=lambda: 1_800_000_000.0,
            monotonic=time.monotonic,
            random=lambda: 0.5,
        )
        one.start()
        made.append(one)
        return one

    yield _make
    for one in made:
        one.stop()


def may_go(folder: Path, receiver: Receiver) -> None:
    """Who keeps the controller lets the secret go to a receiver."""
    host = receiver.url.removeprefix("http://")
    (folder / "key.hosts").write_text(f"# of our own\ngit.example.org\n\n {host}\n")
    (folder / "key.hosts").chmod(0o600)


def channel(receiver: Receiver, **changes: Any) -> desired.NotificationChannel:
    values = {
        "name": "chat",
        "kind": "webhook",
        "url": f"{receiver.url}/hook",
        "secret": "key",
        "on": ("applied", "refused", "held", "unreadable"),
    }
    return desired.NotificationChannel(**(values | changes))


def status(sync: Any = "Synced", revision: str = REVISION, **more: Any) -> desired.SyncStatus:
    return desired.SyncStatus(sync=sync, attempted_revision=revision, **more)


def news(sync: str = "Synced", revision: str = REVISION, **more: Any) -> messages.Notice:
    found = messages.of_status(status(sync, revision, **more), 1_800_000_000.0)
    assert found is not None
    return found


def until(look: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


HELD: dict[str, Any] = {
    "held": (
        desired.HeldPart(
            part="structure", message="held: 16 of 32 GPUs leave", digest="s00j0h0", jobs=()
        ),
    )
}


def test_channels_are_told_nothing_of_what_jobs_run() -> None:
    wrong = tuple(
        desired.Problem("r", "error", "j.yaml", "no text", 4, 7, "Job/j", field, found="48121")
        for field in ("spec.environment.TOKEN", "spec.timeLimit")
    )
    told = news("OutOfSync", problems=wrong).problems
    assert ["48121" in one for one in told] == [False, True]


def test_a_webhook_is_signed_and_says_what_approves(receiver: Receiver, make: Make) -> None:
    make().tell([news("OutOfSync", **HELD)], [channel(receiver)])
    ((path, headers, body),) = receiver.wait(1)
    assert path == "/hook"
    moment = headers["Muster-Timestamp"]
    assert headers["Muster-Signature"] == messages.signature("s3cret", moment, body)
    assert headers["Muster-Signature"] != messages.signature("other", moment, body)
    told = json.loads(body)
    assert told["id"] == headers["Muster-Delivery"]
    assert told["notice"]["reason"] == "held"
    assert told["notice"]["approve"] == ["muster approve s00j0h0"]
    assert told["notice"]["revision"] == REVISION


@pytest.mark.parametrize(
    ("kind", "path", "header", "found"),
    [
        (
            "github",
            f"/repos/o/r/statuses/{REVISION}",
            ("Authorization", "Bearer s3cret"),
            {"state": "pending", "context": "muster/chat"},
        ),
        (
            "gitlab",
            f"/projects/o%2Fr/statuses/{REVISION}",
            ("Private-Token", "s3cret"),
            {"state": "pending", "name": "muster/chat"},
        ),
    ],
)
def test_a_forge_is_told_the_status_of_the_commit(
    receiver: Receiver,
    make: Make,
    folder: Path,
    *,
    kind: str,
    path: str,
    header: tuple[str, str],
    found: dict[str, str],
) -> None:
    one = channel(receiver, kind=kind, url=receiver.url, repository="o/r")
    may_go(folder, receiver)
    notifier = make()
    long = desired.HeldPart(
        part="structure", message="held: " + "x " * 400, digest="s00j0h0", jobs=()
    )
    notifier.tell([news("OutOfSync", held=(long,))], [one])
    ((where, headers, body),) = receiver.wait(1)
    assert where == path
    assert {name.title(): value for name, value in headers.items()}[header[0]] == header[1]
    told = json.loads(body)
    assert found.items() <= told.items()
    assert len(told["description"]) <= 140
    notifier.tell([news()], [one])
    assert json.loads(receiver.wait(2)[1][2])["state"] == "success"
    notifier.tell([news("Unknown")], [one])  # a forge has no form for it
    notifier.tell([news("OutOfSync", "b" * 40)], [one])
    assert json.loads(receiver.wait(3)[2][2])["state"] in {"failure", "failed"}


def test_the_same_news_is_told_once_also_after_a_restart(receiver: Receiver, make: Make) -> None:
    first = make()
    for message in ("down for 1s", "down for 2s"):
        first.tell([news("Unknown", message=message)], [channel(receiver)])
    receiver.wait(1)
    until(lambda: first.counts()["chat", "sent"] == 1)
    first.stop()
    second = make()
    second.tell([news("Unknown", message="down for 3s")], [channel(receiver)])
    second.tell([news()], [channel(receiver)])
    reasons = [json.loads(one[2])["notice"]["reason"] for one in receiver.wait(2)]
    assert reasons == ["unreadable", "applied"]
    # It was readable between: that it is not is news again.
    second.tell([news("Unknown")], [channel(receiver)])
    assert json.loads(receiver.wait(3)[2][2])["notice"]["reason"] == "unreadable"


def test_what_is_forgotten_is_forgotten_by_a_restart_too(receiver: Receiver, make: Make) -> None:
    """Its opposite, which the channel does not want to hear, comes before the restart."""
    one = channel(receiver, on=("node-lost",))
    lost = messages.Notice("Node/n1", "node-lost", REVISION, "silent", "t")
    back = messages.Notice("Node/n1", "node-back", REVISION, "it is Ready", "t")
    first = make()
    first.tell([lost], [one])
    until(lambda: first.counts()["chat", "sent"] == 1)
    first.tell([back], [one])
    first.stop()
    second = make()
    second.tell([lost], [one])
    assert json.loads(receiver.wait(2)[1][2])["notice"]["reason"] == "node-lost"


def test_what_fails_is_tried_again_and_bears_the_same_id(receiver: Receiver, make: Make) -> None:
    receiver.statuses = [500, 429, 200]
    notifier = make()
    notifier.tell([news()], [channel(receiver)])
    got = receiver.wait(3)
    assert len({one[1]["Muster-Delivery"] for one in got}) == 1
    until(lambda: notifier.counts()["chat", "sent"] == 1)
    assert notifier.counts()["chat", "failed"] == 0


def test_what_can_not_succeed_is_given_up(receiver: Receiver, make: Make) -> None:
    receiver.statuses = [403]
    notifier = make()
    notifier.tell([news()], [channel(receiver)])
    until(lambda: notifier.counts()["chat", "failed"] == 1)
    assert len(receiver.got) == 1


def test_trying_has_an_end(receiver: Receiver, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_rules, "TRIES_MAX", 3)
    receiver.statuses = [503]
    notifier = make()
    notifier.tell([news()], [channel(receiver)])
    until(lambda: notifier.counts()["chat", "failed"] == 1)
    assert len(receiver.got) == 3


def test_a_channel_that_is_down_keeps_no_other_waiting(receiver: Receiver, make: Make) -> None:
    notifier = make()
    down = channel(receiver, name="down", url="http://127.0.0.1:9/x")
    notifier.tell([news()], [down, channel(receiver)])
    receiver.wait(1)
    assert notifier.counts()["down", "sent"] == 0


def test_a_channel_that_never_answers_keeps_no_other_waiting(
    receiver: Receiver, make: Make
) -> None:
    """One after the other its notices would take as many time-outs."""
    hole = Receiver()
    hole.answer = threading.Event()
    notifier = make()
    silent = channel(hole, name="silent", on=("node-lost",))
    pager = channel(receiver, name="pager", on=("node-lost",))
    many = [messages.Notice(f"Node/n{n}", "node-lost", REVISION, "silent", "t") for n in range(40)]
    try:
        notifier.tell(many[:-1], [silent])
        hole.wait(1)
        notifier.tell(many[-1:], [silent, pager])
        receiver.wait(1)
        until(lambda: notifier.counts()["pager", "sent"] == 1)
        assert notifier.counts()["silent", "sent"] == 0
    finally:
        hole.answer.set()
        hole.close()


def test_a_channel_whose_thread_has_left_is_told_again(receiver: Receiver, make: Make) -> None:
    notifier = make()
    for number in range(1, 4):
        notifier.tell([news(revision=f"{number:040d}")], [channel(receiver)])
        receiver.wait(number)
        until(lambda: not notifier._threads)
    assert notifier.counts()["chat", "sent"] == 3


def test_a_redirection_is_not_followed(receiver: Receiver, make: Make) -> None:
    receiver.statuses = [307]
    receiver.headers = {"Location": f"{receiver.url}/elsewhere"}
    notifier = make()
    notifier.tell([news()], [channel(receiver)])
    until(lambda: notifier.counts()["chat", "failed"] == 1)
    assert [one[0] for one in receiver.got] == ["/hook"]


def test_the_queue_is_bounded_and_the_oldest_gives_way(
    folder: Path, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_queue, "QUEUE_MAX", 3)
    notifier = delivery.Notifier(
        folder, tmp_path / "n", clock=time.time, monotonic=time.monotonic, random=lambda: 0.0
    )
    for number in range(5):
        notifier.tell([news(revision=f"{number:040d}")], [channel(receiver)])
    assert notifier.waiting() == 3
    assert notifier.counts()["chat", "dropped"] == 2
    notifier.start()
    got = receiver.wait(3)
    notifier.stop()
    assert [json.loads(one[2])["notice"]["revision"][-1] for one in got] == ["2", "3", "4"]


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("again", ["while it is sent", "afterwards"])
def test_news_under_way_when_its_opposite_comes_is_told_when_it_is_so_again(
    receiver: Receiver, make: Make, status: int, again: str
) -> None:
    """A node is lost, back before the first POST is answered, and lost again."""
    receiver.answer = threading.Event()
    receiver.statuses = [status, 200]
    notifier = make()
    one = channel(receiver, on=("node-lost", "node-back"))
    lost = messages.Notice("Node/n1", "node-lost", REVISION, "silent", "t")
    back = messages.Notice("Node/n1", "node-back", REVISION, "it is Ready", "t")
    notifier.tell([lost], [one])
    receiver.wait(1)
    notifier.tell([back], [one])
    if again == "while it is sent":  # then its being back is no longer so, and not told
        notifier.tell([lost], [one])
        receiver.answer.set()
        expected = ["node-lost", "node-lost"]
    else:
        receiver.answer.set()
        receiver.wait(2)
        notifier.tell([lost], [one])
        expected = ["node-lost", "node-back", "node-lost"]
    until(lambda: notifier.counts()["chat", "sent"] == len(expected) - (status != 200))
    got = [json.loads(body)["notice"]["reason"] for _, _, body in receiver.wait(len(expected))]
    assert got == expected
    assert notifier.waiting() == 0


def test_only_what_a_channel_wants_is_told(receiver: Receiver, make: Make) -> None:
    notifier = make()
    one = channel(receiver, on=("held",))
    notifier.tell([news()], [one])
    notifier.tell([news("OutOfSync", **HELD)], [one])
    assert json.loads(receiver.wait(1)[0][2])["notice"]["reason"] == "held"


def _others_may_read(folder: Path) -> None:
    (folder / "key").chmod(0o644)


def _linked(folder: Path) -> None:
    (folder / "key").rename(folder / "other")
    (folder / "key").symlink_to("other")


def _open_folder(folder: Path) -> None:
    folder.chmod(0o777)


def _pipe(folder: Path) -> None:
    (folder / "key").unlink()
    os.mkfifo(folder / "key", 0o600)


def _two_lines(folder: Path) -> None:
    (folder / "key").write_text("a\nb\n")


@pytest.mark.parametrize("spoil", [_others_may_read, _linked, _open_folder, _pipe, _two_lines])
def test_a_secret_that_others_may_get_at_is_not_used(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    assert credentials.read(folder, "key") == "s3cret"
    spoil(folder)
    with pytest.raises(credentials.CredentialError) as refused:
        credentials.read(folder, "key")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_a_token_goes_nowhere_because_somebody_wrote_a_document(
    receiver: Receiver, make: Make, folder: Path, kind: str
) -> None:
    one = channel(receiver, kind=kind, url=receiver.url, repository="o/r")
    notifier = make()
    notifier.tell([news()], [one])
    until(lambda: bool(notifier.untold()))
    (untold,) = notifier.untold()
    host = receiver.url.removeprefix("http://")
    assert f"this is {host}: who keeps the controller writes {host} into" in untold.why
    assert receiver.got == []
    may_go(folder, receiver)
    receiver.wait(1)


@pytest.mark.parametrize(
    ("kind", "bound", "host", "why"),
    [
        ("github", None, "api.github.com", ""),
        ("gitlab", None, "gitlab.com", ""),
        ("github", None, "gitlab.com", "may go to api.github.com, and this is gitlab.com"),
        ("gitlab", None, "gitlab.com:8443", "may go to gitlab.com, and"),
        ("webhook", None, "anywhere.example.org", ""),
        ("webhook", "chat.example.org\n", "chat.example.org", ""),
        ("webhook", "chat.example.org\n", "evil.example.org", "may go to chat.example.org, and"),
        ("github", "Git.Example.org\nh:8443", "git.example.org", ""),
        ("github", "git.example.org", "git.example.org:8443", "may go to git.example.org, and"),
        ("github", "git.example.org", "api.github.com", "may go to git.example.org, and"),
        ("webhook", "# nobody\n", "chat.example.org", "may go to no host"),
    ],
)
def test_a_secret_is_bound_to_hosts(
    folder: Path, kind: str, bound: str | None, host: str, why: str
) -> None:
    if bound is not None:
        (folder / "key.hosts").write_text(bound)
        (folder / "key.hosts").chmod(0o600)
    if not why:
        credentials.require_host(folder, "key", kind, host)
        return
    with pytest.raises(credentials.CredentialError, match=why):
        credentials.require_host(folder, "key", kind, host)


def test_what_binds_a_secret_has_to_be_as_safe_as_the_secret(folder: Path) -> None:
    bound = folder / "key.hosts"
    bound.symlink_to(folder / "nowhere")
    with pytest.raises(credentials.CredentialError, match=r"key\.hosts"):
        credentials.require_host(folder, "key", "webhook", "chat.example.org")
    bound.unlink()
    bound.write_text("evil.example.org\n")
    bound.chmod(0o666)
    with pytest.raises(credentials.CredentialError, match="others may get at it"):
        credentials.require_host(folder, "key", "webhook", "evil.example.org")


@pytest.mark.parametrize("name", ["../key", "/etc/passwd", "", ".hidden", "a/b"])
def test_a_name_leads_nowhere_else(folder: Path, name: str) -> None:
    with pytest.raises(credentials.CredentialError, match="is no name of a secret"):
        credentials.read(folder, name)


def test_who_can_not_be_told_is_known_until_he_is_told_or_leaves(
    receiver: Receiver, make: Make
) -> None:
    """From the first try that fails, though others are made; and of what others tell as well."""
    receiver.statuses = [500, 503, 403]
    notifier = make()
    notifier.tell([news()], [channel(receiver), channel(receiver, name="other", on=())])
    receiver.wait(3)
    until(lambda: [one.tries for one in notifier.untold()] == [3])
    (found,) = notifier.untold()
    assert (found.channel, found.since, found.why) == ("chat", 1_800_000_000.0, "status 403")
    notifier.tried("git notes", "the remote is read-only")
    assert [one.channel for one in notifier.untold()] == ["chat", "git notes"]
    receiver.statuses = [200]
    notifier.tell([news("OutOfSync", "b" * 40)], [channel(receiver)])
    until(lambda: [one.channel for one in notifier.untold()] == ["git notes"])
    notifier.tell([], [])
    assert [one.channel for one in notifier.untold()] == ["git notes"], "it is no channel"
    notifier.tried("git notes", "")
    assert notifier.untold() == ()


def test_a_channel_that_has_left_is_nobody_who_is_not_told(receiver: Receiver, make: Make) -> None:
    receiver.statuses = [403]
    notifier = make()
    notifier.tell([news()], [channel(receiver)])
    until(lambda: bool(notifier.untold()))
    notifier.tell([], [])
    assert notifier.untold() == ()
