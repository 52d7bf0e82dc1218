"""Commands and options of other systems, with the Muster command to use instead.

People type the words of Slurm, LSF, PBS, Kubernetes and Argo CD. A word listed here is answered
with a suggestion; any other unknown word is wrong usage.
"""

from collections.abc import Iterable

_CLUSTER = "muster status (shows the revision in force; commits are applied automatically)"
_DETAILS = "muster job JOB (state and attempts), muster explain JOB (why it waits)"
_WRITTEN = "muster submit FILE.yaml for jobs; commit the file for any other kind"

#: Words of other systems and what to type instead.
OTHER_WORDS: dict[str, str] = {
    # Slurm
    "sbatch": "muster submit --gpus 1 --time 2h -- ./train.sh, or muster submit FILE.yaml",
    "srun": "muster run --gpus 1 -- COMMAND",
    "salloc": "muster run --gpus 1 -- COMMAND (allocates for as long as the command runs)",
    "squeue": "muster jobs",
    "scancel": "muster cancel JOB",
    "sinfo": "muster nodes",
    "sacct": "muster jobs, muster report usage --by user",
    "sacctmgr": "muster queues, muster schema queue (queues and access are YAML in git)",
    "scontrol": "muster job JOB, muster node NODE; muster hold, release, rerun JOB; "
    "muster drain, undrain NODE",
    "sdiag": "muster status, muster top",
    "seff": "muster report efficiency",
    "sprio": "muster explain JOB",
    "sreport": "muster report usage",
    "sshare": "muster queues, muster report fairness",
    "sstat": "muster job JOB, muster plot JOB",
    "strigger": "muster events -w, or notifications of the Cluster: muster schema cluster",
    "requeue": "muster rerun JOB",
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
    "exec": "muster run -- COMMAND (a new job), or muster logs -f JOB (output of a running one)",
    "attach": "muster logs -f JOB",
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
    "lint": "muster validate",
    "check": "muster validate",
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
    "--partition": ("--queue",),
    "--account": ("--queue",),
    "--namespace": ("--queue",),
    "--job-name": ("--name",),
    "--jobname": ("--name",),
    "--ntasks": ("--tasks",),
    "--replicas": ("--tasks",),
    "--cpus-per-task": ("--cpus",),
    "--gres": ("--gpus",),
    "--gpus-per-task": ("--gpus",),
    "--gpus-per-node": ("--gpus",),
    "--mem": ("--memory",),
    "--walltime": ("--time",),
    "--time-limit": ("--time",),
    "--qos": ("--priority-class",),
    "--comment": ("--reason",),
    "--user": ("--owner",),
}


def option(word: str, known: Iterable[str]) -> str:
    """Return the option in `known` that means the same as `word` elsewhere, or an empty string."""
    there = set(known)
    return next((one for one in OTHER_OPTIONS.get(word, ()) if one in there), "")
