"""Words of other systems, and what does here what they do there: an answer instead of a shrug.

People come with the words of Slurm, LSF, PBS, Kubernetes and Argo CD in their fingers. A word that
is no command of Muster's and stands here is told what to type; all else is wrong usage as ever.
"""

from collections.abc import Iterable

_CLUSTER = "a commit takes effect by itself: muster status tells what is in force"
_DETAILS = "muster job JOB (its state and attempts), muster explain JOB (why it waits)"
_WRITTEN = "muster submit FILE.yaml for jobs; all else is a file that you commit"

#: A word to what is to be typed for it.
OTHER_WORDS: dict[str, str] = {
    # Slurm
    "sbatch": "muster submit --gpus 1 --time 2h -- ./train.sh, or muster submit FILE.yaml",
    "srun": "muster run --gpus 1 -- COMMAND",
    "salloc": "muster run --gpus 1 -- COMMAND: a job holds what its command needs, and no longer",
    "squeue": "muster jobs",
    "scancel": "muster cancel JOB",
    "sinfo": "muster nodes",
    "sacct": "muster jobs, muster report usage --by user",
    "sacctmgr": "queues and people are YAML in git: muster queues shows them, muster schema queue",
    "scontrol": "muster job JOB, muster node NODE; muster hold, release, rerun JOB; "
    "muster drain, undrain NODE",
    "sdiag": "muster status, muster top",
    "seff": "muster report efficiency",
    "sprio": "muster explain JOB",
    "sreport": "muster report usage",
    "sshare": "muster queues, muster report fairness",
    "sstat": "muster job JOB, muster plot JOB",
    "strigger": "muster events -w; notifications are fields of the Cluster: muster schema cluster",
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
    "edit": "edit the file and commit it; muster submit FILE.yaml commits a job's",
    "patch": "edit the file and commit it; muster submit FILE.yaml commits a job's",
    "scale": "edit spec.count (or min, max) of the job's file, and muster submit FILE.yaml",
    "delete": "muster cancel JOB; all else leaves with the file that you take out of git",
    "rm": "muster cancel JOB",
    "kill": "muster cancel JOB",
    "stop": "muster cancel JOB, or muster hold JOB to let it go on later",
    "pause": "muster hold JOB, muster suspend queue/QUEUE",
    "unpause": "muster release JOB, muster resume queue/QUEUE",
    "start": "muster up (a cluster on this machine), muster submit (a job)",
    "restart": "muster rerun JOB",
    "cordon": "muster drain NODE --reason WHY",
    "uncordon": "muster undrain NODE",
    "exec": "a job runs its own command only; muster logs -f JOB follows what it prints",
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
    "users": "muster access can WHO submit Queue/QUEUE; it is YAML in git: muster schema access",
}

#: An option of other systems, or of another command here, to what it may be called.
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
    """What of the options that a command knows is called otherwise elsewhere; empty: none."""
    there = set(known)
    return next((one for one in OTHER_OPTIONS.get(word, ()) if one in there), "")
