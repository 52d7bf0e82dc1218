"""Checks of the agent's options: controller, token, address, metrics port and secrets."""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

from agents import settings
from agents.data import secret_store
from agents.exporter import listeners
from agents.host import token_file
from agents.link import controller_address, source_ports
from agents.link.http_client import ControllerTarget, LinkError
from agents.node import agent_identity
from agents.preflight.finding import PreflightFinding, failed, note, ok
from reconciler.model.values import addresses

CONNECT_TIMEOUT_S = 5.0
#: Problems of secrets that are listed one by one.
SECRET_PROBLEMS_MAX = 20


def options(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Report values on the command line with which an agent does not start."""
    for problem in settings.problems(given):
        yield failed("options", problem, "The agent does not start with this value")


def controller(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Check the token file, and that the controller can be reached, if they are given."""
    if given.token_file is not None:
        try:
            token_file.read_token(given.token_file)
        except (token_file.TokenFileError, OSError) as problem:
            yield failed("token", str(problem), "Or name another file by --token-file")
        else:
            yield ok("token", str(given.token_file))
    if given.server is None:
        yield note("controller", "not checked", "To check the connection: give --server")
        return
    try:
        _, host, port, _ = ControllerTarget(given.server).parts()
        source_ports.dial(host, port, CONNECT_TIMEOUT_S).close()
    except (LinkError, OSError) as problem:
        do = "To fix: check the address, the port, and that the controller runs"
        yield failed("controller", f"{given.server}: {problem}", do)
    else:
        yield ok("controller", f"{given.server} can be reached")


def address(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Check the address by which tasks on other nodes reach tasks here."""
    if given.virtual or given.server is None:
        return
    found = given.address
    if not found:
        agent = settings.AgentSettings(given.server, given.name or "", given.root or Path("/"))
        found = controller_address.address_of(agent)
    if addresses.is_loopback(found):
        do = "Jobs on several nodes cannot connect to their tasks here. To fix: give --address"
        yield note("address", f"{found}, which on each node means that node itself", do)
    else:
        yield ok("address", f"other nodes reach this one at {found}")


def metrics_port(given: argparse.Namespace) -> Iterator[PreflightFinding]:
    """Check that the node's own port for Prometheus can be opened, if one is requested."""
    name = "metrics port"
    try:
        listen = settings.listen_of(given)
        if listen is None:
            return
        if listen.token_file is not None:
            token_file.read_token(listen.token_file)
        listeners.bind(listen).close()
    except listeners.TakenError as problem:
        yield _port_in_use(name, given, problem)
    except (ValueError, token_file.TokenFileError, OSError) as problem:
        yield failed(name, str(problem), "Or leave out --metrics-listen")
    else:
        if addresses.is_loopback(listen.host):
            yield ok(name, f"{listen.shown} is free")
            return
        yield ok(
            name,
            f"{listen.shown} is free; pages and the token are sent unencrypted",
            "Limit it to a trusted network, or listen on 127.0.0.1 behind a proxy with TLS",
        )


def _port_in_use(
    name: str, given: argparse.Namespace, problem: listeners.TakenError
) -> PreflightFinding:
    lock = agent_identity.lock_of(given.root) if given.root is not None else None
    if problem.pid is not None and lock is not None and listeners.has_open(problem.pid, lock):
        return ok(name, f"{given.metrics_listen} is in use by the agent of {given.root} itself")
    return note(
        name,
        str(problem),
        "An agent works without the port and retries. But the program that has it receives the "
        "tokens of those who connect: end it first",
    )


def secrets(folder: Path | None) -> Iterator[PreflightFinding]:
    """Check that only their owners can read the secrets of jobs."""
    if folder is None:
        return
    found = list(itertools.islice(secret_store.problems(folder), SECRET_PROBLEMS_MAX + 1))
    for problem in found[:SECRET_PROBLEMS_MAX]:
        yield failed("secrets", problem, "Until then jobs that use it end as StartFailed")
    if len(found) > SECRET_PROBLEMS_MAX:
        yield failed("secrets", "more problems like these", "To see them: fix these first")
    if not found:
        yield ok("secrets", f"{folder}: only their owners can read them")
