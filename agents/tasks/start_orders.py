"""From an assignment to the order that the supervisor carries out: command, environment, user.

What a task may not choose for itself is laid over what its template says. Folders for
checkpoints are made here, component by component, so that no link leads out of the shared folder.
"""

import os
import pwd
import re
import stat
import time
from pathlib import Path
from typing import Any

import msgspec

from agents.data import staging
from agents.gpus import mps
from agents.host import unix_users
from agents.isolation import task_limits
from agents.job_data import checkpoints
from agents.tasks import container_runtimes, frameworks, images
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import Gpu
from reconciler.model.values import exec_limits

#: What an attempt's id may look like: it becomes the name of a folder and of two files.
ATTEMPT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,239}")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RESERVED_PREFIX = "MUSTER_"


class NodeFolders(msgspec.Struct, frozen=True):
    """What of a node its tasks depend on. ``root`` and ``shared`` are absolute, without links."""

    name: str
    root: str
    shared: str
    gpus: tuple[Gpu, ...] = ()
    as_root: bool = False
    holding: task_limits.IsolationCapabilities = task_limits.IsolationCapabilities()
    podman: tuple[str, ...] = ("podman",)
    fabric: dict[str, str] = {}


class User(msgspec.Struct, frozen=True):
    """Whom a task runs as. ``switch``: it isn't who the agent is; then its ``groups`` are known."""

    name: str
    uid: int
    gid: int
    home: str
    switch: bool
    groups: tuple[int, ...] = ()


class UnstartableError(Exception):
    """An assignment that can't be started here, and why."""


def find_user(template: TaskTemplate, place: NodeFolders) -> User:
    """The user a task runs as: the template's where the agent is root, else the agent's own."""
    found = _account(template, place)
    if place.as_root and found.uid == 0 and not template.allow_root:
        raise UnstartableError(
            f"job {template.job} would run as root on node {place.name}; give its owner a user, or "
            "allow root in the pool"
        )
    return found


def _account(template: TaskTemplate, place: NodeFolders) -> User:
    name = asked_for(template, place)
    if name is None:
        uid = os.geteuid()
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return User(str(uid), uid, os.getegid(), "/", switch=False)
        return User(entry.pw_name, uid, entry.pw_gid, entry.pw_dir, switch=False)
    found = unix_users.SYSTEM.of(name)
    if found is None:
        raise UnstartableError(
            f"user {name!r} does not exist on node {place.name}; create it there, or change "
            "the job's user"
        )
    switch = found.uid != os.geteuid()
    return User(found.name, found.uid, found.gid, found.home, switch=switch, groups=found.groups)


def asked_for(template: TaskTemplate, place: NodeFolders) -> str | None:
    """The name of the user that the system is asked for; None: it is the agent's own."""
    return template.user if place.as_root else None


def switch_to(user: User) -> dict[str, Any]:
    """Whom the supervisor is to become. It looks nobody up: a directory service that does not
    answer may keep one start waiting, never the supervisor."""
    return {"name": user.name, "uid": user.uid, "gid": user.gid, "groups": list(user.groups)}


class AttemptResources(msgspec.Struct, frozen=True):
    """What this node has chosen for one attempt.

    ``cpus`` are cores, as the kernel lists them; ``instances`` MIG devices. ``kept`` is what
    ``checkpoints_of`` has found; None: it is looked for now.
    """

    cpus: str = ""
    kept: dict[str, str] | None = None
    instances: tuple[MigInstance, ...] = ()


NOTHING_GIVEN = AttemptResources()


def order_for(
    assignment: Assignment,
    template: TaskTemplate,
    place: NodeFolders,
    given: AttemptResources = NOTHING_GIVEN,
) -> dict[str, Any]:
    """The supervisor's order to start an attempt.

    Raises:
        UnfitError: it can't be started here.
    """
    name = assignment.attempt
    if not ATTEMPT_PATTERN.fullmatch(name):
        raise UnstartableError(f"attempt id {name!r} can't be the name of a folder")
    folder = f"{place.root}/attempts/{name}"
    user = find_user(template, place)
    argv, script = _command(template, folder)
    kept = checkpoints_of(assignment, template, place) if given.kept is None else given.kept
    environment = environment_of(assignment, template, place, user, kept, instances=given.instances)
    files: dict[str, str] = {}
    if template.framework == "mpi":
        gang = frameworks.gang_of(assignment, template, place.name)
        argv, files, more = frameworks.launch(gang, argv, folder, assignment.secret)
        environment |= more
    cwd = template.working_directory or f"{folder}/work"
    if template.runtime != "process":
        task = {"argv": argv, "script": script, "cwd": cwd, "env": environment}
        return _contained(assignment, template, place, user, task=task, given=given)
    sharing = shared_device(assignment, template, place, user)
    if sharing is not None:
        environment |= _share(sharing, assignment, place)
    return {
        **_common(assignment, template, user),
        "argv": argv,
        "script": script,
        "files": files,
        "mps": sharing,
        "env": environment,
        "cwd": cwd,
        **_held(assignment, template, place, user, given=given, needed=[cwd, argv[0]]),
    }


def _command(template: TaskTemplate, folder: str) -> tuple[list[str], str | None]:
    """What is executed, and the script that it is, if any."""
    script = template.script
    if script is None:
        if not template.command:
            raise UnstartableError(f"job {template.job} has neither a command nor a script")
        return list(template.command), None
    if len(script.encode()) > exec_limits.SCRIPT_BYTES_MAX:
        raise UnstartableError(
            f"script of job {template.job} is larger than {exec_limits.SCRIPT_BYTES_MAX} bytes"
        )
    argv = [f"{folder}/script"]
    return (argv if script.startswith("#!") else ["/bin/sh", *argv]), script


def _common(assignment: Assignment, template: TaskTemplate, user: User) -> dict[str, Any]:
    """What the orders for processes and containers say alike."""
    return {
        "op": "start",
        "id": assignment.attempt,
        "user": switch_to(user) if user.switch else None,
        "lease_s": template.lease_s,
        "checkpoint_signal": template.checkpoint_signal,
        "grace_s": template.grace_s,
        "wanted": wanted_secrets(template, user),
        "stage": wanted_data(assignment, template, user),
    }


def _share(sharing: mps.MpsShare, assignment: Assignment, place: NodeFolders) -> dict[str, str]:
    """What a task is told of its share of a device."""
    gpu = next(gpu for gpu in place.gpus if gpu.index == sharing.device)
    folder = f"{place.root}/mps/{sharing.name}"
    return mps.environment(folder, assignment.share_milli, gpu.memory_bytes)


def _held(
    assignment: Assignment,
    template: TaskTemplate,
    place: NodeFolders,
    user: User,
    *,
    given: AttemptResources,
    needed: list[str],
) -> dict[str, Any]:
    """What a process is held to, and what it sees of its node."""
    denied = task_limits.denied_gpus(place.gpus, assignment.reachable, given.instances)
    return {
        "limits": task_limits.limits_of(
            place.holding, template.cpu_milli, template.memory_bytes, given.cpus, denied
        ),
        "private": task_limits.view_of(
            place.holding,
            f"{place.root}/attempts/{assignment.attempt}",
            [place.root, place.shared, *needed],
            memory_bytes=template.memory_bytes,
            denied=list(denied),
            alone=user.switch,
        ),
    }


def shared_device(
    assignment: Assignment, template: TaskTemplate, place: NodeFolders, user: User
) -> mps.MpsShare | None:
    """The device that a plain process is to share by MPS; None: it shares none, or by turns."""
    if not template.mps or assignment.share_milli >= 1000 or template.runtime != "process":
        return None
    given = [gpu for gpu in place.gpus if gpu.index in assignment.devices and not gpu.simulated]
    if len(given) != 1:
        return None
    return mps.MpsShare(given[0].index, given[0].uuid, switch_to(user) if user.switch else None)


def _contained(
    assignment: Assignment,
    template: TaskTemplate,
    place: NodeFolders,
    user: User,
    *,
    task: dict[str, Any],
    given: AttemptResources,
) -> dict[str, Any]:
    """The order for a task in a container; ``image`` says what has to be there before.

    The runtime is the node's. Where a job says to look for programs is of no use in its container,
    and here it would be followed by the agent, which it could lead to a file system that hangs.
    """
    task = {**task, "env": {**task["env"], "PATH": node_path(user)}}
    runtime = container_runtimes.find(template.runtime, place.podman, task["env"]["PATH"])
    if runtime is None:
        raise UnstartableError(
            f"job {template.job} runs by {template.runtime}, which is not installed on node "
            f"{place.name}; install it, or keep the job to pools that have it"
        )
    folder = f"{place.root}/attempts/{assignment.attempt}"
    library = (f"{place.root}/lib", True)
    binds = [(folder, False), (place.shared, False), library, *template.mounts]
    if template.stage.ins:
        binds.append((f"{place.root}/cache/{user.uid}", True))
    box = container_runtimes.Box(
        attempt=assignment.attempt,
        root=place.root,
        image=template.image,
        argv=tuple(task["argv"]),
        cwd=task["cwd"],
        environment=task["env"],
        binds=tuple(dict(binds).items()),
        gpus=tuple(gpu for gpu in place.gpus if gpu.index in assignment.devices),
        # of simulated devices no runtime knows; a node offers such ones or real ones
        instances=()
        if any(gpu.simulated for gpu in place.gpus)
        else tuple(one.uuid for one in given.instances),
        memory_bytes=template.memory_bytes,
        pids_max=place.holding.pids_max,
        as_root=user.uid == 0,
        cgroup=f"{place.holding.path}/{assignment.attempt}" if place.holding.path else "",
        cpus=given.cpus,
        limits=container_runtimes.limits_of_process(),
    )
    # what root's runtime makes has groups of its own, in which it could not allow what is usual
    denied = {}
    if user.uid != 0:
        denied = task_limits.denied_gpus(place.gpus, assignment.reachable, given.instances)
    switched = switch_to(user) if user.switch else None
    base = {name: task["env"][name] for name in ("PATH", "HOME", "USER", "LOGNAME")}
    remove = runtime.remove(box.name)
    return {
        **_common(assignment, template, user),
        "argv": runtime.run(box),
        "script": task["script"],
        "env": runtime.environment(box),
        # the runtime starts in a folder that is there, and goes to the task's in the container
        "cwd": f"{folder}/work",
        "limits": task_limits.limits_of(
            place.holding, template.cpu_milli, template.memory_bytes, given.cpus, denied
        ),
        "cleanup": {"argv": remove, "env": base, "user": switched} if remove else None,
        "image": images.ImageRequest(
            runtime, template.image, switched, tuple(base.items()), template.image_timeout_s
        ),
    }


def node_path(user: User) -> str:
    """Where programs are looked for, unless a job says so of its own."""
    return DEFAULT_PATH if user.switch else os.environ.get("PATH", DEFAULT_PATH)


def staged_variable(name: str) -> str:
    """The variable that tells where data is that was copied under a name."""
    return f"MUSTER_STAGED_{name.upper().replace('-', '_')}"


def wanted_data(
    assignment: Assignment, template: TaskTemplate, user: User
) -> staging.StagingRequest | None:
    """What is copied for a task, and as whom; None: nothing."""
    if not template.stage:
        return None
    words = {
        "job": template.job, "run": str(template.run), "element": str(assignment.element),
        "group": template.group, "index": str(assignment.index), "try": str(assignment.try_number),
    }  # fmt: skip
    switched = switch_to(user) if user.switch else None
    return staging.StagingRequest(
        template.stage, switched, user.name, user.uid, user.gid, words,
        template.lease_s, template.grace_s,
    )  # fmt: skip


def wanted_secrets(template: TaskTemplate, user: User) -> dict[str, Any] | None:
    """Whose secrets a task is to get, and by which variables; None: it names none."""
    if not template.secrets:
        return None
    return {"user": user.name, "uid": user.uid, "names": list(template.secrets)}


def environment_of(
    assignment: Assignment,
    template: TaskTemplate,
    place: NodeFolders,
    user: User,
    kept: dict[str, str],
    *,
    instances: tuple[MigInstance, ...] = (),
) -> dict[str, str]:
    """A clean base, what the template adds, and over both what is the system's to say."""
    base = {
        "PATH": node_path(user),
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "TMPDIR": f"{place.root}/attempts/{assignment.attempt}/tmp",  # noqa: S108 - the task's own
    }
    if template.framework != "none":
        base |= place.fabric
    chosen = {k: v for k, v in template.environment.items() if not k.startswith(RESERVED_PREFIX)}
    uuids = {gpu.index: gpu.uuid for gpu in place.gpus}
    reserved = {
        "MUSTER_JOB": template.job,
        "MUSTER_RUN": str(template.run),
        "MUSTER_GROUP": template.group,
        "MUSTER_TASK_INDEX": str(assignment.index),
        "MUSTER_ATTEMPT": assignment.attempt,
        "MUSTER_TRY": str(assignment.try_number),
        "MUSTER_NODE": place.name,
        "MUSTER_NODE_ROOT": place.root,
        "MUSTER_SHARED_DIR": place.shared,
        "MUSTER_METRICS": f"{place.root}/attempts/{assignment.attempt}/metrics",
        "MUSTER_GPUS": ",".join(map(str, assignment.devices)),
        "CUDA_VISIBLE_DEVICES": ",".join(
            [*(uuids.get(i, str(i)) for i in assignment.devices), *(one.uuid for one in instances)]
        ),
    }
    reserved |= _shares_of(assignment)
    reserved |= kept
    # the paths are filled in where they are known
    reserved |= {staged_variable(one.name): "" for one in template.stage.ins}
    if template.stage.outs:
        reserved["MUSTER_OUT_DIR"] = f"{place.root}/attempts/{assignment.attempt}/work"
    if template.secrets:
        folder = f"{place.root}/attempts/{assignment.attempt}/secrets"
        reserved["MUSTER_SECRETS_DIR"] = folder
        # the values are filled in where they are known; here it is only which there are
        chosen |= {variable: "" for _, variable in template.secrets if variable}
    if template.framework != "none":
        gang = frameworks.gang_of(assignment, template, place.name)
        reserved |= frameworks.environment(template.framework, gang)
    # last, so that no module of the job's own by that name is hidden
    paths = [chosen["PYTHONPATH"]] if chosen.get("PYTHONPATH") else []
    reserved["PYTHONPATH"] = ":".join([*paths, f"{place.root}/lib"])
    return base | chosen | template.told | reserved


def _shares_of(assignment: Assignment) -> dict[str, str]:
    """What an attempt learns of its place in an array and its parts of devices."""
    told: dict[str, str] = {}
    if assignment.array_count is not None:
        told["MUSTER_ARRAY_INDEX"] = str(assignment.element)
        told["MUSTER_ARRAY_COUNT"] = str(assignment.array_count)
    if assignment.share_milli < 1000:
        told["MUSTER_GPU_SHARE"] = f"{assignment.share_milli / 1000:g}"
    if assignment.instances:
        told["MUSTER_MIG_PROFILE"] = assignment.mig_profile
        told["MUSTER_MIG_INSTANCES"] = ",".join(map(str, assignment.instances))
    return told


def checkpoints_of(
    assignment: Assignment, template: TaskTemplate, place: NodeFolders
) -> dict[str, str]:
    """Variables of the folder for checkpoints, which is made, and of the newest whole one in it.

    The folder is on storage that may take its time, or hang.

    Raises:
        UnfitError: there can be no such folder.
    """
    below = template.checkpoint_path
    if below is None:
        return {}
    folder = make_folder(place.shared, below, find_user(template, place))
    told = {"MUSTER_CHECKPOINT_DIR": folder}
    return told | resumed(assignment, template, place.shared, folder)


def resumed(
    assignment: Assignment, template: TaskTemplate, shared: str, folder: str
) -> dict[str, str]:
    """Where the next attempt may go on from: the newest whole checkpoint, if there is any."""
    found = checkpoints.newest(
        shared,
        template.checkpoint_path or "",
        template.saves,
        assignment.element,
        now=time.time(),
        told=assignment.saved,
    )
    if found is None:
        return {}
    told = {"MUSTER_CHECKPOINT": f"{folder}/{found.path}"}
    if found.step is not None:
        told["MUSTER_CHECKPOINT_STEP"] = (
            f"{found.step:g}" if found.step % 1 else str(int(found.step))
        )
    return told


def make_folder(shared: str, relative: str, user: User) -> str:
    """Make a folder under the shared one, the last of it the user's own. No link is followed."""
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if relative.startswith("/") or ".." in parts or not parts:
        raise UnstartableError(
            f"checkpoint path {relative!r} has to be relative to the shared folder {shared} and "
            "stay in it"
        )
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    where = shared
    try:
        handle = os.open(shared, flags)
        try:
            for part in parts:
                where = f"{where}/{part}"
                made = _make_below(handle, part)
                below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = below
            if made and user.switch:
                os.fchown(handle, user.uid, user.gid)
        finally:
            os.close(handle)
    except OSError as problem:
        raise UnstartableError(
            f"checkpoint folder {where}: {os.strerror(problem.errno or 0)}; links are not followed"
        ) from None
    return where


def _make_below(handle: int, part: str) -> bool:
    """Make one folder; False when it was there."""
    try:
        os.mkdir(part, 0o755, dir_fd=handle)
    except FileExistsError:
        return False
    return True


def read_token(path: Path) -> str:
    """The token to show to the controller, from a file that nobody else can read."""
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UnstartableError(
            f"token file {path} has mode {stat.S_IMODE(mode):04o}: others can get at it; "
            f"chmod 600 {path}"
        )
    token = path.read_text(encoding="utf-8").strip()
    if not token or not token.isascii() or any(c.isspace() for c in token):
        raise UnstartableError(f"token file {path} has to hold one token of ASCII without spaces")
    return token
