"""Commands and options of other systems, with the Muster command to use instead.

People type the words of Slurm, LSF, PBS, Kubernetes and Argo CD, and misspell those of Muster. An
unknown command, option or argument comes in; a hint of what to type instead goes out.
"""

import difflib
from collections.abc import Iterable

from reconciler.model.values import found_values

_CLUSTER = "muster status (shows the revision in force; commits are applied automatically)"
_DETAILS = "muster job JOB (state and attempts), muster explain JOB (why it waits)"
_WRITTEN = "muster submit FILE.yaml for jobs; commit the file for any other kind"

#: Words of other systems and what to type instead.
OTHER_WORDS: dict[str, str] = {
    # Slurm
    "sbatch": "muster submit ./train.sh (its #SBATCH lines count), muster submit -- COMMAND, or "
    "muster submit FILE.yaml",
    "srun": "muster run -- COMMAND",
    "salloc": "muster run --pty --gpus 1 -- bash (allocates for as long as the shell runs)",
    "squeue": "muster jobs",
    "scancel": "muster cancel JOB",
    "sinfo": "muster nodes",
    "sacct": "muster jobs, muster report usage --by user",
    "sacctmgr": "muster queues, muster schema queue (queues and access are YAML in git)",
    "scontrol": "muster job JOB, muster node NODE; muster hold, release, rerun JOB; "
    "muster drain, undrain NODE",
    "sdiag": "muster status, muster top",
    "seff": "muster job JOB, muster report efficiency",
    "sprio": "muster explain JOB",
    "sreport": "muster report usage",
    "sshare": "muster queues, muster report fairness",
    "sstat": "muster job JOB, muster plot JOB",
    "strigger": "muster notify add me, muster events -w, or notifications of the Cluster: "
    "muster schema cluster",
    "requeue": "muster rerun JOB",
    "sattach": "muster attach JOB",
    "partition": "muster queues, muster nodes (with their pools)",
    "partitions": "muster queues, muster nodes (with their pools)",
    # LSF and PBS
    "bsub": "muster submit -- COMMAND",
    "bjobs": "muster jobs",
    "bkill": "muster cancel JOB",
    "bhosts": "muster nodes",
    "bqueues": "muster queues",
    "qsub": "muster submit -- COMMAND",
    "qstat": "muster jobs",
    "qdel": "muster cancel JOB",
    "qhold": "muster hold JOB",
    "qrls": "muster release JOB",
    # Kubernetes
    "get": "muster jobs, muster nodes, muster queues",
    "list": "muster jobs, muster nodes, muster queues",
    "ls": "muster jobs, muster nodes, muster queues",
    "ps": "muster jobs",
    "pods": "muster jobs",
    "pod": "muster job JOB",
    "pool": "muster nodes (with their pools), muster schema nodepool (pools are YAML in git)",
    "pools": "muster nodes (with their pools), muster schema nodepool (pools are YAML in git)",
    "nodepool": "muster nodes (with their pools), muster schema nodepool (pools are YAML in git)",
    "nodepools": "muster nodes (with their pools), muster schema nodepool (pools are YAML in git)",
    "gpus": "muster nodes, muster node NODE",
    "help": "muster --help, or the help of one command, such as muster submit --help",
    "check": "muster validate (a folder), muster submit --dry-run FILE (a job)",
    "lint": "muster validate (a folder), muster submit --dry-run FILE (a job)",
    "describe": _DETAILS,
    "show": _DETAILS,
    "info": _DETAILS,
    "apply": _WRITTEN,
    "create": _WRITTEN,
    "edit": "edit the YAML file and commit it; for a job, muster submit FILE.yaml commits it",
    "patch": "edit the YAML file and commit it; for a job, muster submit FILE.yaml commits it",
    "scale": "edit spec.count (or min, max) of the job's file, and muster submit FILE.yaml",
    "delete": "muster cancel JOB; for any other kind, delete its YAML and commit",
    "rm": "muster cancel JOB",
    "kill": "muster cancel JOB",
    "stop": "muster cancel JOB, or muster hold JOB to continue later",
    "pause": "muster hold JOB, muster suspend queue/QUEUE",
    "unpause": "muster release JOB, muster resume queue/QUEUE",
    "start": "muster up (a cluster on this machine), muster submit (a job)",
    "restart": "muster rerun JOB",
    "cordon": "muster drain NODE --reason WHY",
    "uncordon": "muster undrain NODE",
    "jupyter": "muster notebook",
    "jupyterlab": "muster notebook",
    "lab": "muster notebook",
    "config": "muster schema cluster (settings are YAML in git), muster doctor",
    "update": "edit the YAML file and commit it; for a job, muster submit FILE.yaml commits it",
    "ui": "muster top, or Grafana for dashboards",
    "console": "muster top, or Grafana for dashboards",
    "dashboard": "muster top, or Grafana for dashboards",
    "ping": "muster doctor",
    "debug": "muster doctor, muster explain JOB",
    "id": "muster whoami",
    "shell": "muster exec JOB -- bash",
    "ssh": "muster exec JOB -- bash",
    "port-forward": "muster forward JOB PORT",
    "portforward": "muster forward JOB PORT",
    "tunnel": "muster forward JOB PORT",
    "scp": "muster cp JOB:PATH PATH",
    "rsync": "muster cp JOB:PATH PATH",
    "tail": "muster logs -f JOB",
    "api-resources": "muster schema",
    "fields": "muster schema KIND",
    "auth": "muster access can WHO submit Queue/QUEUE",
    "cluster-info": "muster status",
    "watch": "muster events -w, muster top",
    # Argo CD, Flux and git
    "app": "muster status",
    "diff": "muster plan [REV]",
    "sync": _CLUSTER,
    "refresh": _CLUSTER,
    "reconcile": _CLUSTER,
    "revert": "muster rollback REV",
    "undo": "muster rollback REV",
    "rollout": "muster history, muster rollback REV",
    "log": "muster logs JOB, muster history",
    "usage": "muster report usage",
    "quota": "muster quotas",
    "resourcequota": "muster quotas",
    "qos": "muster quotas, muster queues",
    "users": "muster access can WHO submit Queue/QUEUE, muster schema access (YAML in git)",
}

#: Options of other systems, or of other commands, and what to use instead.
OTHER_OPTIONS: dict[str, tuple[str, ...]] = {
    "--since": ("--from",),
    "--start": ("--from",),
    "--until": ("--to",),
    "--end": ("--to",),
    "--from": ("--since",),
    "--partition": ("--queue", "--pool"),
    "--account": ("--queue",),
    "--namespace": ("--queue",),
    "--job-name": ("--name",),
    "--jobname": ("--name",),
    "--ntasks": ("--tasks",),
    "--replicas": ("--tasks",),
    "--cpus-per-task": ("--cpus",),
    "--gpus-per-task": ("--gpus",),
    "--walltime": ("--time",),
    "--time-limit": ("--time",),
    "--qos": ("--priority-class",),
    "--comment": ("--reason",),
    "--user": ("--owner",),
    "-u": ("--owner",),
    "-p": ("--queue", "--pool"),
    "-t": ("--state",),
    "--states": ("--state",),
    "-S": ("--from", "--since"),
    "--starttime": ("--from", "--since"),
    "-E": ("--to", "--until"),
    "--endtime": ("--to", "--until"),
    "--me": ("--mine",),
    "-A": ("--queue",),
    "-J": ("--name",),
    "-w": ("--watch",),
    "-f": ("--watch", "--follow"),
    "--follow": ("--watch",),
    "--branch": ("--head",),
    "--revision": ("--head",),
    "--format": ("--output",),
    "--mem-per-node": ("--memory",),
    "--message": ("--reason",),
    "--dependency": ("--depends",),
    "--depends-on": ("--depends",),
    "--after": ("--depends",),
    "--afterok": ("--depends",),
    "-d": ("--depends",),
    "--workdir": ("--chdir",),
    "-D": ("--chdir",),
    "-H": ("--hold",),
    "--container-image": ("--image",),
    "--nodelist": ("--set",),
    "--requeue": ("--retries",),
    "--duration": ("--for",),
    "-o": ("--output-file",),
    "-a": ("--array",),
    "-G": ("--gpus",),
    "-b": ("--begin",),
    "--test-only": ("--dry-run",),
}


#: Options that are not another option here, and what to do instead.
OPTION_ADVICE: dict[str, str] = {
    "--watch": "to follow changes: muster top, muster events -w",
    "-w": "to follow changes: muster top, muster events -w",
    "--json": "for JSON: -o json",
    "--wrap": "write the command after --, such as: -- sh -c 'COMMAND'",
    "--yaml": "for YAML: -o yaml",
    "--wide": "for more columns: -o wide",
    "--all-namespaces": "all queues are listed without it",
    "--container-image": "containers are for jobs: muster submit --image",
    "--image": "containers are for jobs: muster submit --image",
    "--dependency": "dependencies are for jobs: muster submit --depends",
    "--owner": "the owner is your git identity",
    "--env": "variables are for jobs: muster submit --env",
    "--export": "variables are for jobs: muster submit --export",
    "--mail-type": "to be told of your jobs by mail or chat: muster notify add me",
    "--mail-user": "to be told of your jobs by mail or chat: muster notify add me",
    "--gres": "of a node, which tasks may share: say what one task gets, --gpus",
    "--gpus-per-node": "of a node, which tasks may share: say what one task gets, --gpus",
    "--mem": "of a node, which tasks may share: say what one task gets, --memory",
    "--mem-per-cpu": "--memory is that of one task",
    "--mem-per-gpu": "--memory is that of one task",
    "--constraint": "for nodes with a label: --set nodeSelector.LABEL=VALUE",
    "-C": "for nodes with a label: --set nodeSelector.LABEL=VALUE",
    "--wait": "to wait for the end: muster submit --wait, muster run, or muster wait JOB",
    "-W": "to wait for the end: muster submit --wait, muster run, or muster wait JOB",
    "--parsable": "choose the name of the job: --name NAME",
    "-d": "dependencies are for jobs: muster submit --depends",
    **dict.fromkeys(
        ("-u", "--user", "--uid", "--me"),
        "for the jobs of one person: muster jobs --owner WHO, or --mine; for their use: muster "
        "report usage --by user",
    ),
    **dict.fromkeys(
        ("-j", "--jobs", "--jobid", "-n", "--name", "--job-name", "--jobname"),
        "a job is named without an option, such as: muster job JOB",
    ),
    **dict.fromkeys(
        ("-p", "--partition", "-A", "--account"),
        "for the jobs of one queue: muster jobs --queue QUEUE",
    ),
    "--start": "when jobs that wait are to start: muster jobs (START), muster explain JOB",
    "-i": "to follow changes: muster top, muster events -w",
    "--iterate": "to follow changes: muster top, muster events -w",
}
#: Commands that take no further word, and where that word belongs.
EXTRA_WORD_ADVICE: dict[str, str] = {
    "nodes": "muster node {word}",
    "node": "muster node {first}, or muster nodes (lists all)",
    "job": "muster jobs {first} {word}",
    "explain": "muster explain {first}, then muster explain {word}",
    "queues": "muster queues (lists all), or muster jobs --queue {word}",
    "events": "muster events --job {word}, or muster events --node {word}",
    "drift": "muster drift --node {word}, or muster drift --pool {word}",
    "status": "muster job {word}, or muster node {word}",
    "top": "muster job {word}, or muster node {word}",
    "plan": "muster plan {word} --base {first}",
    "history": "muster history (lists all), or git log {word}",
    "init": "muster init {first}",
    "logs": "muster logs {first}, then muster logs {word}",
    "plot": "muster plot {first}, then muster plot {word}",
}
#: Kinds that are written before a name, as in `queue/default`.
_KINDS = frozenset({"cluster", "queue", "job", "node", "nodepool", "quota", "policy", "volume"})
#: How alike a misspelt word has to be to one of Muster, and to one of another system.
_ALIKE = 0.6
_FOREIGN_ALIKE = 0.75


def option(word: str, known: Iterable[str]) -> str:
    """Return the option in `known` that means the same as `word` elsewhere, or an empty string."""
    there = set(known)
    return next((one for one in OTHER_OPTIONS.get(word, ()) if one in there), "")


def describe_option(word: str, known: Iterable[str]) -> str:
    """Return the message about an unknown option, with the option or command to use instead."""
    spellings = list(known)
    meant = option(word, spellings)
    if not meant and word in OPTION_ADVICE:
        return f"no option {word} here; {OPTION_ADVICE[word]}"
    if not meant:
        long = [one for one in spellings if one.startswith("--")]
        meant = "".join(difflib.get_close_matches(word, long, n=1, cutoff=_ALIKE))
    return f"no option {word} here" + (f"; did you mean {meant}?" if meant else "")


def describe_command(word: str, known: Iterable[str]) -> str:
    """Return the message about an unknown command, with the command to use instead.

    Words of other systems count for commands of `muster` itself, not for those of a group.
    """
    commands = list(known)
    words = OTHER_WORDS if "submit" in commands else {}
    if word in words:
        return f"no command {found_values.quote(word)} here. Use: {words[word]}"
    near = difflib.get_close_matches(word.lower(), commands, n=2, cutoff=_ALIKE)
    foreign = difflib.get_close_matches(word.lower(), words, n=1, cutoff=_FOREIGN_ALIKE)
    if near and not (foreign and _alike(word, foreign[0]) > _alike(word, near[0])):
        return f"no command {found_values.quote(word)} here; did you mean {' or '.join(near)}?"
    return f"no command {found_values.quote(word)} here" + (
        f". Use: {words[foreign[0]]}" if foreign else ""
    )


def _alike(word: str, other: str) -> float:
    """Return how alike two words are, from 0 to 1."""
    return difflib.SequenceMatcher(None, word.lower(), other).ratio()


def describe_extra_word(command: str, first: str, word: str) -> str:
    """Return the message about an argument too many.

    Args:
        command: name of the command.
        first: the argument before; empty if there is none.
        word: the first argument that the command does not take.
    """
    if first.lower() in _KINDS:
        return f"unexpected argument {word}; did you mean {first}/{word}?"
    advice = EXTRA_WORD_ADVICE.get(command, "").format(word=word, first=first)
    if not advice:
        return f"unexpected argument {word}" + ("" if first else f"; muster {command} takes none")
    return f"unexpected argument {word}. Use: {advice}"
