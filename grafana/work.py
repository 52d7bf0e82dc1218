"""Dashboards of jobs, and of what all of them used and cost."""

from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.models import dashboard as models

from grafana import panels
from grafana.panels import BAD, GOOD, WARNING

#: GPU-hours of each queue and owner within the range shown.
HOURS = "increase(muster_gpu_allocated_seconds_total[$__range]) / 3600"
JOB = '{job_name="$job_name"}'
#: Keeps of GPUs those that the job has, each once.
ITS_GPUS = f"and on (node, gpu) muster_task_gpu_info{JOB}"
#: What happens to the job, each at its moment.
ITS_EVENTS = (
    panels.Moments(
        "Starts of its tasks",
        f"1000 * max by (element, task, node) (muster_task_start_timestamp_seconds{JOB})",
        "task {{task}} of element {{element}} starts on {{node}}",
        "green",
        by_value=True,
    ),
    panels.Moments(
        "Its checkpoints",
        f"1000 * max by (element, task) (muster_task_checkpoint_timestamp_seconds{JOB})",
        "whole checkpoint of element {{element}}",
        "purple",
        by_value=True,
    ),
)


def _of_job(series: str) -> str:
    """A series of GPUs for each task of the job that has one; several tasks may share a GPU."""
    return f"muster_task_gpu_info{JOB} * on (node, gpu) group_left () {series}"


def jobs() -> models.Dashboard:
    """One job: its tasks, its GPUs; and all jobs together."""
    return panels.board(
        "muster-jobs",
        "Jobs",
        "One job: where its tasks are and what its GPUs do. Below: how jobs fare as a whole. "
        "Starts and checkpoints are marked; all its events and its output are at "
        "`muster events --job` and `muster logs`.",
        {"One job": _one_job(), "All jobs": _all_jobs()},
        [
            panels.variable(
                "job_name", "label_values(muster_task_info, job_name)", "Job.", many=False
            )
        ],
        moments=ITS_EVENTS,
    )


def _tasks_of_one_job() -> panels.Panel:
    by_task = "by (element, task, node)"
    return panels.rows(
        "Tasks",
        "Where each task is, since when it runs, what it was given beside what it uses. What is "
        "given and not used keeps others from starting.",
        {
            "runs for": f"time() - max {by_task} (muster_task_start_timestamp_seconds{JOB})",
            "CPUs": f"max {by_task} (muster_task_requested_cpus{JOB})",
            "CPUs used": f"max {by_task} "
            f"(rate(muster_task_cpu_seconds_total{JOB}[$__rate_interval]))",
            "memory": f"max {by_task} (muster_task_requested_memory_bytes{JOB})",
            "most memory used": f"max {by_task} (muster_task_memory_max_bytes{JOB})",
            "processes": f"max {by_task} (muster_task_processes{JOB})",
            "GPUs": f"count {by_task} (muster_task_gpu_info{JOB})",
        },
        units={"runs for": "s", "memory": "bytes", "most memory used": "bytes"},
        link=("Its node", "/d/muster-nodes?var-node=${__data.fields.node}"),
    )


def _one_job() -> list[panels.Panel]:
    return [
        _tasks_of_one_job(),
        panels.states(
            "Where its tasks ran",
            "A line for each task and node: a gap is a requeue, another line a move.",
            f"max by (element, task, node) (muster_task_info{JOB})",
            "{{element}} {{task}} on {{node}}",
            {"1": ("runs", "blue")},
        ),
        panels.lines(
            "Utilisation of its GPUs",
            "Part of the time in which a kernel ran, by task and GPU. Stragglers stand out.",
            {"{{task}} {{node}}/{{gpu}}": _of_job("muster_gpu_utilization_ratio")},
            look=panels.Look(unit="percentunit", most=1),
        ),
        panels.lines(
            "Device memory of its GPUs",
            "How near it is to running out.",
            {"{{task}} {{node}}/{{gpu}}": _of_job("muster_gpu_memory_used_bytes")},
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "Power of its GPUs",
            "A better sign of work than utilisation, which is 100 % also for one small kernel.",
            {"{{task}} {{node}}/{{gpu}}": _of_job("muster_gpu_power_usage_watts")},
            look=panels.Look(unit="watt"),
        ),
        *_used_by_its_tasks(),
        panels.lines(
            "What its tasks write",
            "Series that tasks write to `MUSTER_METRICS`, such as the loss; `muster plot` has "
            "their whole past, over steps.",
            {"{{metric}} {{task}}": f"muster_task_metric{JOB}"},
        ),
        panels.lines(
            "Work at risk",
            "Time since the newest whole checkpoint, or the start: what an eviction would cost.",
            {
                "{{element}} {{task}}": "time() - "
                f"muster_task_unsaved_since_timestamp_seconds{JOB}",
                "as often as it means to save": "max(muster_task_checkpoint_interval_seconds"
                f"{JOB})",
            },
            look=panels.Look(unit="s"),
        ),
        panels.lines(
            "Traffic of its GPUs",
            "PCIe traffic to and from them: data that is loaded, or a gang without NVLink.",
            {
                "in": f"sum(muster_gpu_pcie_received_bytes_per_second {ITS_GPUS})",
                "out": f"sum(muster_gpu_pcie_transmitted_bytes_per_second {ITS_GPUS})",
            },
            look=panels.Look(unit="Bps"),
        ),
    ]


def _used_by_its_tasks() -> list[panels.Panel]:
    task = "{{element}} {{task}}"
    return [
        panels.lines(
            "CPUs that its tasks use",
            "Of those that each was given. Little of them: fewer would do. All of them beside idle "
            "GPUs: loading of data holds them up.",
            {
                task: f"rate(muster_task_cpu_seconds_total{JOB}[$__rate_interval]) "
                f"/ (muster_task_requested_cpus{JOB} > 0)"
            },
            look=panels.Look(unit="percentunit"),
        ),
        panels.lines(
            "Memory that its tasks use",
            "Without what is only cached of files; and the most that one task may use.",
            {
                task: f"muster_task_memory_bytes{JOB}",
                "given to each": f"max(muster_task_requested_memory_bytes{JOB})",
            },
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "Memory that its tasks have on GPUs",
            "As the driver tells of each process. Where GPUs are shared the panel of device memory "
            "shows what all of them have.",
            {f"{task} {{{{node}}}}/{{{{gpu}}}}": f"muster_task_gpu_memory_bytes{JOB}"},
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "Storage that its tasks read and write",
            "Bytes from and to storage: what a cache answers is not among them.",
            {
                f"{kind} by {task}": f"rate(muster_task_storage_{kind}_bytes_total{JOB}"
                "[$__rate_interval])"
                for kind in ("read", "written")
            },
            look=panels.Look(unit="Bps"),
        ),
    ]


def _all_jobs() -> list[panels.Panel]:
    return [
        panels.lines(
            "Jobs that finished",
            "By final state.",
            {
                "{{state}}": "sum by (state) "
                "(increase(muster_jobs_finished_total[$__rate_interval]))"
            },
            stacked=True,
        ),
        panels.lines(
            "Attempts that ended",
            "By reason. `NodeLost` and `LeaseExpired` are the cluster's fault and cost no retry.",
            {
                "{{reason}}": "sum by (reason) "
                "(increase(muster_attempts_ended_total[$__rate_interval]))"
            },
            stacked=True,
        ),
        panels.heat(
            "How long jobs ran",
            "From first start to end. A point is a job, and leads to it.",
            "muster_job_run_seconds",
            exemplars=True,
        ),
        panels.lines(
            "Quick failures by node",
            "Attempts that could not start or failed within a minute. One node alone is a black "
            "hole.",
            {"{{node}}": "increase(muster_node_failed_attempts_total[$__rate_interval])"},
        ),
    ]


def usage() -> models.Dashboard:
    """What was used, by whom, and what does it cost?"""
    price = (
        boards.TextBoxVariable("price")
        .label("price of a GPU-hour")
        .description("In your currency. `muster report usage` has prices by model.")
        .default_value("2.50")
    )
    return panels.board(
        "muster-usage",
        "Usage and cost",
        "GPU-hours by queue and owner within the range shown, what they cost, and what of them "
        "did nothing. For months and bills there is `muster report`.",
        {"GPU-hours": [*_used(), *_used_by_whom()]},
        [price],
    )


def _used() -> list[panels.Panel]:
    return [
        panels.number(
            "GPU-hours",
            "GPUs that attempts held, times the time they held them.",
            f"sum({HOURS})",
            look=panels.Look(width=6),
        ),
        panels.number(
            "Cost",
            "GPU-hours times the price that stands above.",
            f"sum({HOURS}) * $price",
            look=panels.Look(width=6),
        ),
        panels.number(
            "GPUs held now",
            "GPUs that attempts hold at this moment.",
            'sum(muster_pool_gpus{state="allocated"})',
            look=panels.Look(width=6),
        ),
        panels.number(
            "Did nothing",
            "Part of the time of allocated GPUs in which no kernel ran, over the last "
            "hour. From a third on orange, from two thirds red.",
            "1 - avg(avg_over_time(muster_gpu_utilization_ratio[1h]) "
            "and on (node, gpu) muster_node_gpu_allocated == 1)",
            look=panels.Look(
                unit="percentunit", steps=((None, GOOD), (1 / 3, WARNING), (2 / 3, BAD)), width=6
            ),
        ),
    ]


def _used_by_whom() -> list[panels.Panel]:
    return [
        panels.bars(
            "By queue",
            "GPU-hours within the range shown.",
            f"sort_desc(sum by (queue) ({HOURS}))",
            "{{queue}}",
        ),
        panels.bars(
            "By owner",
            "GPU-hours within the range shown, the twenty largest.",
            f"topk(20, sum by (owner) ({HOURS}))",
            "{{owner}}",
        ),
        panels.lines(
            "GPUs held, by queue",
            "GPUs that attempts of each queue held, the mean of each step of the chart.",
            {
                "{{queue}}": "sum by (queue) "
                "(rate(muster_gpu_allocated_seconds_total[$__rate_interval]))"
            },
            stacked=True,
        ),
        panels.rows(
            "By queue and owner",
            "GPU-hours and their cost.",
            {
                "GPU-hours": f"sum by (queue, owner) ({HOURS})",
                "cost": f"sum by (queue, owner) ({HOURS}) * $price",
            },
            look=panels.Look(width=12),
        ),
    ]
