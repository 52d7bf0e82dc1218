"""Examination of the way from a person to the cluster: faults, and what to do about them.

What was seen comes in; a line for each part goes out, the first ones first to be mended. Nothing
is asked of anybody here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Json = Any
#: ``ok``: as it should be. ``note``: it works, and may surprise. ``wrong``: mend it.
Verdict = Literal["ok", "note", "wrong"]

#: The most that this machine's clock may differ, beyond the time that an answer took.
SKEW_S_MAX = 5.0
#: A token that ends sooner is told.
ENDS_SOON_S = 7 * 86_400.0


class Diagnosis(msgspec.Struct, frozen=True):
    """One part that was looked at; ``to_fix`` says what to do, if there is anything to do."""

    verdict: Verdict
    part: str
    text: str
    to_fix: str = ""


class DoctorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen.

    Attributes:
        url: of the controller; empty: none is known.
        source: where that comes from, in words.
        problem: why it could not be asked; empty if it could.
        token_problem: it answers, and why the token does not count; empty if it does.
        answer: of ``GET /v1/identity``; None: there is none.
        skew_s: how far this machine's clock is ahead, beyond the time that the answer took.
        ends_in_s: how long the token is valid; None: without end.
        nodes: items of ``GET /v1/nodes``.
        adoption: answer of ``GET /v1/adopt``; None: there is none.
        git_email: address of this person's commits; None: git has none.
        git_signs: git signs commits here.
        python: folder of the active environment; None: there is none.
        is_own_python: that environment is Muster's own.
        version: of this program.
    """

    url: str
    source: str
    problem: str = ""
    token_problem: str = ""
    answer: Json = None
    skew_s: float = 0.0
    ends_in_s: float | None = None
    nodes: Sequence[Json] = ()
    adoption: Json = None
    git_email: str | None = None
    git_signs: bool = False
    python: str | None = None
    is_own_python: bool = False
    version: str = ""

    @property
    def leads(self) -> bool:
        """False if another controller leads the cluster; an older one does not say."""
        return self.adoption is None or bool(self.adoption.get("leads", True))


def examine(seen: DoctorFacts) -> list[Diagnosis]:
    """Return a line for each part."""
    lines = [_controller(seen)]
    if seen.answer is not None or seen.token_problem:
        lines.append(_token(seen))
    if seen.answer is not None:
        lines += [_clock(seen), _nodes(seen), _access(seen)]
    return [*lines, _git(seen), _python(seen)]


def _controller(seen: DoctorFacts) -> Diagnosis:
    part = "controller"
    if not seen.url:
        fix = "muster login URL for your cluster's, or muster up for one on this machine"
        return Diagnosis("wrong", part, seen.problem or "none is known here", fix)
    where = f"{seen.url}, {seen.source}"
    if seen.problem:
        fix = "see if it runs (systemctl status muster-controller), and if the address is right"
        return Diagnosis("wrong", part, f"{where}: {seen.problem}", fix)
    if seen.answer is None:
        return Diagnosis("ok", part, where)
    if not seen.answer["ready"]:
        fix = "muster status tells what it waits for"
        return Diagnosis("wrong", part, f"{where}: it leads no cluster yet", fix)
    if not seen.leads:
        fix = "muster login URL of the controller that leads, or end that one if it is not wanted"
        return Diagnosis("wrong", part, f"{where}: it does not lead; {_why(seen)}", fix)
    if seen.adoption is not None and seen.adoption["pending"]:
        fix = "muster adopt tells what it waits for, and starts what you choose"
        text = f"{where}: jobs of before wait; {_why(seen)}"
        return Diagnosis("note", part, text, fix)
    theirs = seen.answer["version"]
    if theirs != seen.version:
        fix = f"pip install muster-cluster=={theirs}, if commands misbehave"
        text = f"{where}: its version is {theirs}, and here is {seen.version}"
        return Diagnosis("note", part, text, fix)
    return Diagnosis("ok", part, f"{where}, version {theirs}")


def _why(seen: DoctorFacts) -> str:
    """Return why jobs wait to be adopted."""
    said = str(seen.adoption["blocked"] or seen.adoption["why"])
    return said.removeprefix("nothing can be adopted yet: ").partition(". To fix: ")[0]


def _token(seen: DoctorFacts) -> Diagnosis:
    part = "token"
    if seen.token_problem:
        fix = "muster login URL with a token from who runs the controller (muster token create)"
        return Diagnosis("wrong", part, seen.token_problem, fix)
    text = f"{seen.answer['identity']['name']}, role {seen.answer['role']}"
    if seen.ends_in_s is not None and seen.ends_in_s < ENDS_SOON_S:
        fix = "ask who runs the controller for a new one, and muster login again"
        return Diagnosis("note", part, f"{text}; it ends at {seen.answer['expiresAt']}", fix)
    return Diagnosis("ok", part, text)


def _clock(seen: DoctorFacts) -> Diagnosis:
    if abs(seen.skew_s) <= SKEW_S_MAX:
        return Diagnosis("ok", "clock", "as the controller's")
    way = "ahead of" if seen.skew_s > 0 else "behind"
    text = f"this machine is {abs(seen.skew_s):.0f} s {way} the controller"
    return Diagnosis("wrong", "clock", text, "set it by NTP (timedatectl set-ntp true)")


def _nodes(seen: DoctorFacts) -> Diagnosis:
    part = "nodes"
    states = Counter(str(node["state"]) for node in seen.nodes)
    if not states and not seen.leads:
        return Diagnosis("note", part, "not known here: they report to the controller that leads")
    if not states:
        fix = "start an agent on a node (muster agent --help), or muster up for virtual nodes"
        return Diagnosis("wrong", part, "no node has joined yet, so nothing can start", fix)
    text = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    if not states["Ready"]:
        return Diagnosis("wrong", part, f"{text}: none takes work", "muster nodes -o wide says why")
    return Diagnosis("ok", part, text)


def _access(seen: DoctorFacts) -> Diagnosis:
    part, whose = "access", seen.answer["identity"]
    if not whose["isListed"]:
        fix = "ask for an identity in Access, if something is refused"
        return Diagnosis("note", part, f"Access does not list {whose['name']}", fix)
    roles = ", ".join(whose["roles"]) or "no role"
    user = f"jobs run as {whose['unixUser']}" if whose["unixUser"] else "no Unix user"
    return Diagnosis("ok", part, f"{roles}; {user}")


def _git(seen: DoctorFacts) -> Diagnosis:
    part = "git"
    if seen.git_email is None:
        fix = "git config --global user.email YOU@EXAMPLE.ORG"
        return Diagnosis("note", part, "commits made here have no author", fix)
    whose = None if seen.answer is None else seen.answer["identity"]
    if whose is None:
        return Diagnosis("ok", part, seen.git_email)
    if whose["verification"] == "required" and not whose["signs"]:
        fix = "muster submit and other verbs still work: the controller commits for you"
        text = "commits have to be signed, and Access lists no key of yours"
        return Diagnosis("note", part, text, fix)
    if whose["verification"] == "required" and not seen.git_signs:
        fix = "git config --global commit.gpgsign true"
        return Diagnosis("note", part, "commits have to be signed, and git signs none here", fix)
    if whose["name"] != seen.git_email and "@" in whose["name"]:
        text = f"commits are by {seen.git_email}, and the token is of {whose['name']}"
        fix = "git config user.email, if both should be the same person"
        return Diagnosis("note", part, text, fix)
    return Diagnosis("ok", part, seen.git_email)


def _python(seen: DoctorFacts) -> Diagnosis:
    if seen.python is not None:
        return Diagnosis("ok", "python", f"jobs use {seen.python}, where a node has it")
    why = "this is Muster's own, which no job gets" if seen.is_own_python else "none is active"
    fix = "activate your environment before muster run or submit (guide: your code and your Python)"
    return Diagnosis("note", "python", f"{why}: jobs use the Python of their node", fix)


def worst(lines: Sequence[Diagnosis]) -> Verdict:
    """Return the worst verdict."""
    found = {line.verdict for line in lines}
    order: tuple[Verdict, ...] = ("wrong", "note")
    return next((one for one in order if one in found), "ok")
