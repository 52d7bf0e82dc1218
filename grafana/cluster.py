"""Dashboards of the cluster as it is: the overview, and nodes with their GPUs."""

from grafana_foundation_sdk.models import dashboard as models

from grafana import panels
from grafana.panels import BAD, GOOD, WARNING

NONE = ((None, GOOD), (1, WARNING))
NONE_AT_ALL = ((None, GOOD), (1, BAD))
#: GPUs that a task has, with what they do.
BUSY = "muster_gpu_utilization_ratio and on (node, gpu) muster_node_gpu_allocated == 1"
ON = '{pool=~"$pool", node=~"$node"}'
CPUS_OF_TASKS = f"rate(muster_task_cpu_seconds_total{ON}[$__rate_interval])"


def overview() -> models.Dashboard:
    """Is the cluster what git says, do its GPUs work, why does work wait, is control well?"""
    return panels.board(
        "muster-overview",
        "Overview",
        "Is the cluster what git says, do the GPUs work, why does work wait, is control well?",
        {
            "At a glance": _glance(),
            "GPUs": [
                panels.lines(
                    "GPUs by state",
                    "GPUs that attempts hold, that are free, and that are away with their node. "
                    "The sum is what the cluster has.",
                    {"{{state}}": "sum by (state) (muster_pool_gpus)"},
                    stacked=True,
                ),
                panels.lines(
                    "Work of allocated GPUs",
                    "Part of the time in which a kernel ran on GPUs that a task has, the mean and "
                    "the tenth of them that does least.",
                    {
                        "mean": f"avg({BUSY})",
                        "lowest tenth": f"quantile(0.1, {BUSY})",
                    },
                    look=panels.Look(unit="percentunit", most=1),
                ),
            ],
            "Work": [
                panels.lines(
                    "Jobs that wait, by reason",
                    "Pending jobs by their first reason; the dashboard *Why is work waiting* goes "
                    "on from here.",
                    {"{{reason}}": "sum by (reason) (muster_pending_jobs)"},
                    stacked=True,
                ),
                panels.lines(
                    "Jobs by state",
                    "Jobs that are listed and alive, by state.",
                    {
                        "{{state}}": "sum by (state) "
                        '(muster_jobs{state=~"Held|Pending|Starting|Running"})'
                    },
                    stacked=True,
                ),
            ],
        },
    )


def _glance() -> list[panels.Panel]:
    return [*_state_and_gpus(), *_waiting_and_control()]


def _state_and_gpus() -> list[panels.Panel]:
    return [
        panels.number(
            "Git",
            "Whether the head of the branch is in force as a whole.",
            'muster_sync_state{state="Synced"}',
            words={"0": ("not in force", BAD), "1": ("in force", GOOD)},
            link=("What is refused, and since when", "/d/muster-gitops"),
        ),
        panels.number(
            "Drift",
            "Differences between git and what is observed; `muster drift` lists them.",
            "sum(muster_drift) or vector(0)",
            look=panels.Look(steps=NONE),
            link=("Which kinds", "/d/muster-gitops"),
        ),
        panels.number(
            "GPUs allocated",
            "Part of all GPUs that attempts hold. Below 80 % orange, below half red: with work "
            "waiting, look why.",
            'sum(muster_pool_gpus{state="allocated"}) / sum(muster_pool_gpus)',
            look=panels.Look(unit="percentunit", steps=panels.RISING),
            link=("Who has them", "/d/muster-queues"),
        ),
        panels.number(
            "GPUs at work",
            "Mean utilisation of the GPUs that a task has. Below 80 % orange, below half red.",
            f"avg({BUSY})",
            look=panels.Look(unit="percentunit", steps=panels.RISING),
            link=("Which do nothing", "/d/muster-nodes"),
        ),
    ]


def _waiting_and_control() -> list[panels.Panel]:
    return [
        panels.number(
            "Jobs waiting",
            "Pending jobs of all queues.",
            'sum(muster_jobs{state="Pending"})',
            link=("What they wait for", "/d/muster-waiting"),
        ),
        panels.number(
            "Oldest that waits",
            "How long the oldest pending job has waited: from four hours on orange, a day red.",
            "time() - min(muster_oldest_pending_timestamp_seconds)",
            look=panels.Look(unit="s", steps=((None, GOOD), (4 * 3600, WARNING), (86400, BAD))),
            link=("What it waits for", "/d/muster-waiting"),
        ),
        panels.number(
            "Nodes not ready",
            "Nodes that take no new work: drained, unhealthy, silent or gone.",
            'sum(muster_nodes{state!="Ready"})',
            look=panels.Look(steps=NONE),
            link=("Which", "/d/muster-nodes"),
        ),
        panels.number(
            "Control",
            "Age of the loop's page: it is made after each cycle, and every half minute without. "
            "After a minute orange; after two, red, an alert comes.",
            "time() - muster_page_timestamp_seconds",
            look=panels.Look(unit="s", steps=((None, GOOD), (60, WARNING), (120, BAD))),
            link=("How it is", "/d/muster-control-plane"),
        ),
    ]


def nodes() -> models.Dashboard:
    """Nodes, what their GPUs do, and what is wrong with them."""
    return panels.board(
        "muster-nodes",
        "Nodes and GPUs",
        "Which nodes are fit, what their GPUs do, and which of them fail.",
        {"Nodes": _fitness(), "What GPUs do": _gpus(), "What GPUs suffer": _suffering(),
         "Hosts": _hosts()},
        [
            panels.variable("pool", "label_values(muster_nodes, pool)", "Node pool."),
            panels.variable(
                "node", 'label_values(muster_node_attempts{pool=~"$pool"}, node)', "Node."
            ),
        ],
    )  # fmt: skip


def _fitness() -> list[panels.Panel]:
    return [
        panels.lines(
            "Nodes by state",
            "Nodes of the pools. `Unknown` is silent and keeps its work until leases end.",
            {"{{state}}": 'sum by (state) (muster_nodes{pool=~"$pool"})'},
            stacked=True,
        ),
        panels.bars(
            "Silence of agents",
            "Time since each agent last reported, the ten longest. Red from the time on at which "
            "a node counts as silent by default, orange from half of it on.",
            "topk(10, time() - muster_agent_last_report_timestamp_seconds"
            '{pool=~"$pool", node=~"$node"})',
            "{{node}}",
            look=panels.Look(unit="s", steps=((None, GOOD), (45, WARNING), (90, BAD))),
        ),
        panels.number(
            "Failed checks",
            "Health checks that fail on the nodes that are chosen: such a node takes no work.",
            f'sum(muster_node_check{{verdict="failed", {ON[1:]}) or vector(0)',
            look=panels.Look(steps=NONE_AT_ALL, width=12),
        ),
        panels.lines(
            "Machines of pools that grow and shrink",
            "By state; those that stay in `Creating` never came up.",
            {
                state.lower(): f'sum(muster_pool_instances{{pool=~"$pool", state="{state}"}}) '
                "or vector(0)"
                for state in ("Creating", "Up", "Draining", "Destroying")
            },
            stacked=True,
        ),
        panels.rows(
            "Nodes",
            "What each node has, and what of it tasks were given.",
            {
                "CPUs": f"sum by (node, pool) (muster_node_capacity_cpus{ON})",
                "CPUs given": f"sum by (node, pool) (muster_node_allocated_cpus{ON})",
                "CPUs used by tasks": f"sum by (node, pool) ({CPUS_OF_TASKS})",
                "GPUs": f"sum by (node, pool) (muster_node_gpus{ON})",
                "GPUs given": f"sum by (node, pool) (muster_node_gpu_allocated{ON})",
                "tasks": f"sum by (node, pool) (muster_node_attempts{ON})",
            },
            link=("Only this node", "/d/muster-nodes?var-node=${__data.fields.node}"),
        ),
    ]


def _gpus() -> list[panels.Panel]:
    legend = "{{node}} {{gpu}}"
    return [
        panels.lines(
            "Utilisation",
            "Part of the time in which a kernel ran. One GPU of a gang that stays at 0 % or "
            "100 % while the others change is where it hangs.",
            {legend: f"muster_gpu_utilization_ratio{ON}"},
            look=panels.Look(unit="percentunit", most=1),
        ),
        panels.lines(
            "Device memory that tasks have",
            "By task, as the driver tells of each process: who has what of a GPU that is shared.",
            {
                f"{legend} {{{{job_name}}}} {{{{element}}}} {{{{task}}}}": (
                    f"muster_task_gpu_memory_bytes{ON}"
                )
            },
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "Device memory in use",
            "Memory of each GPU that processes use, whoever they are.",
            {legend: f"muster_gpu_memory_used_bytes{ON}"},
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "Temperature",
            "Of each GPU. Most slow down at about 85 °C (orange) to 90 °C (red).",
            {legend: f"muster_gpu_temperature_celsius{ON}"},
            look=panels.Look(
                unit="celsius", steps=((None, "transparent"), (85, WARNING), (90, BAD))
            ),
        ),
        panels.lines(
            "Power",
            "Power that GPUs draw, and the sum of their limits.",
            {
                "drawn": f"sum(muster_gpu_power_usage_watts{ON})",
                "limit": f"sum(muster_gpu_power_limit_watts{ON})",
            },
            look=panels.Look(unit="watt"),
        ),
        panels.number(
            "Allocated and idle",
            "GPUs that a task has and on which no kernel ran in ten minutes.",
            f"count((muster_node_gpu_allocated{ON} == 1) and on (node, gpu) "
            f"(max_over_time(muster_gpu_utilization_ratio{ON}[10m]) < 0.05)) or vector(0)",
            look=panels.Look(steps=NONE, width=6),
        ),
        panels.number(
            "Foreign processes",
            "Processes on GPUs that belong to no task.",
            'sum(muster_gpu_processes{kind="foreign", pool=~"$pool", node=~"$node"})',
            look=panels.Look(steps=NONE, width=6),
        ),
    ]


def _suffering() -> list[panels.Panel]:
    return [
        panels.number(
            "GPUs that can't be used",
            "Lost, missing, failed, or without an answer of the driver.",
            f'sum(max by (node, gpu) (muster_gpu_state{ON[:-1]}, state!="ok"}}))',
            look=panels.Look(steps=NONE_AT_ALL, width=6),
        ),
        panels.rows(
            "XID events",
            "What the driver logged since each agent started. 13, 31, 43, 45 and 68 are mostly "
            "mistakes of programs.",
            {"events": f"muster_gpu_xid_errors_total{ON}"},
            hide=("uuid",),
            look=panels.Look(width=9),
        ),
        panels.rows(
            "Uncorrected memory errors",
            "Since the driver was loaded. Anything but 0 needs a reset; results may be wrong.",
            {"errors": f'muster_gpu_ecc_errors_total{ON[:-1]}, severity="uncorrected"}}'},
            hide=("uuid",),
            look=panels.Look(width=9),
        ),
        panels.lines(
            "Clocks held back",
            "How many GPUs have their clocks held back, by reason.",
            {
                "{{reason}}": "sum by (reason) (muster_gpu_clock_event_reason"
                f'{ON[:-1]}, reason!="gpu-idle"}})'
            },
        ),
        panels.lines(
            "PCIe retries",
            "Retries on the link: a riser or slot that is about to fail.",
            {"{{node}} {{gpu}}": f"increase(muster_gpu_pcie_replays_total{ON}[$__rate_interval])"},
        ),
    ]


def _hosts() -> list[panels.Panel]:
    return [
        panels.lines(
            "CPUs busy",
            "Part of the CPUs of each node that is busy. Full CPUs beside idle GPUs: loading of "
            "data is what holds them up.",
            {"{{node}}": f"muster_node_cpu_used_ratio{ON}"},
            look=panels.Look(unit="percentunit", most=1),
        ),
        panels.lines(
            "Disk full",
            "Of the disk that tasks write to. At 90 %, red, an alert comes.",
            {"{{node}}": f"muster_node_disk_used_bytes{ON} / muster_node_disk_size_bytes{ON}"},
            look=panels.Look(unit="percentunit", most=1, steps=((None, "transparent"), (0.9, BAD))),
        ),
        panels.lines(
            "Memory in use",
            "Of each node.",
            {"{{node}}": f"muster_node_memory_used_bytes{ON}"},
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "CPUs given and used",
            "CPUs that tasks were given on the nodes that are chosen, and those they use. What "
            "lies between keeps other work from starting: the dashboard *Jobs* tells whose it is.",
            {
                "given": f"sum(muster_task_requested_cpus{ON})",
                "used": f"sum({CPUS_OF_TASKS})",
            },
        ),
        panels.lines(
            "Memory given and used",
            "The same of memory, without what is only cached of files.",
            {
                "given": f"sum(muster_task_requested_memory_bytes{ON})",
                "used": f"sum(muster_task_memory_bytes{ON})",
            },
            look=panels.Look(unit="bytes"),
        ),
        panels.lines(
            "Cost of agents",
            "CPU that the agents themselves take.",
            {"{{node}}": f"rate(muster_agent_cpu_seconds_total{ON}[$__rate_interval])"},
            look=panels.Look(unit="percentunit"),
        ),
    ]
