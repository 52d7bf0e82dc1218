"""Dashboards of the cluster as it is: the overview, and nodes with their GPUs."""

from grafana_foundation_sdk.models import dashboard as models

from grafana import control, panels
from grafana.panels import BAD, GOOD, WARNING, Look
from reconciler.model.state.pending_reasons import NEVER_CODES, ReasonCode

NONE = ((None, GOOD), (1, WARNING))
NONE_AT_ALL = ((None, GOOD), (1, BAD))
#: GPUs that a task has, with what they do.
BUSY = "muster_gpu_utilization_ratio and on (node, gpu) muster_node_gpu_allocated == 1"
#: Sizes of numbers in a line of four, and in one of five, whose last one has what is left.
FOURTH, FIFTH = Look(width=6), Look(width=5)
#: Reasons of jobs that more room, or room in another form, would start.
ROOM = (
    ReasonCode.WAITING_FOR_QUOTA,
    ReasonCode.FRAGMENTED,
    ReasonCode.INSUFFICIENT_RESOURCES,
    ReasonCode.WAITING_FOR_EVICTIONS,
    ReasonCode.RESERVED,
    ReasonCode.BEHIND,
)
#: GPUs that work asks for which waits for room.
FOR_ROOM = f'sum(muster_pending_gpus{{reason=~"{"|".join(ROOM)}"}})'
#: Reasons that waiting does not end, but for those that somebody chose.
NEVER = "|".join(sorted((NEVER_CODES | {ReasonCode.NO_TOPOLOGY_DOMAIN}) - {ReasonCode.HELD}))
#: Alerts of Muster's rules that fire, by severity.
FIRING = 'count(ALERTS{alertname=~"Muster.*", alertstate="firing", severity="%s"}) or vector(0)'
ON = '{pool=~"$pool", node=~"$node"}'
CPUS_OF_TASKS = f"rate(muster_task_cpu_seconds_total{ON}[$__rate_interval])"


def overview() -> models.Dashboard:
    """Is the cluster what git says, do its GPUs work, why does work wait, is control well?"""
    return panels.board(
        "muster-overview",
        "Overview",
        "A line for each question: is the cluster what git says, do GPUs do useful work, why does "
        "work wait, is the control plane well? Green and blue need nobody, orange can wait until "
        "tomorrow, red can't. Each number leads to the dashboard that says more.",
        {
            "Is the cluster what git says?": _as_git_says(),
            "Do GPUs do useful work?": _useful(),
            "Why does work wait?": _waiting(),
            "Is the control plane well?": _control(),
            "Over time": _over_time(),
        },
    )


def _as_git_says() -> list[panels.Panel]:
    return [
        panels.number(
            "Git",
            "Whether the head of the branch is in force as a whole. Red otherwise: somebody was "
            "told that a change is merged, and the cluster goes by another.",
            'muster_sync_state{state="Synced"}',
            words={"0": ("not in force", BAD), "1": ("in force", GOOD)},
            look=FOURTH,
            link=("What is refused, and since when", "/d/muster-gitops"),
        ),
        panels.number(
            "Errors in git",
            "What is refused of what is written, each with file and line in `muster status`. Red "
            "from one on: what was in force before stays so, and its author may not know.",
            'sum(muster_sync_problems{severity="error"}) or vector(0)',
            look=FOURTH._replace(steps=NONE_AT_ALL),
            link=("What is refused", "/d/muster-gitops"),
        ),
        panels.number(
            "Held until approved",
            "Changes that safety holds until somebody approves them: `muster status` names them. "
            "Orange from one on; after an hour an alert comes.",
            "sum(muster_approvals_waiting) or vector(0)",
            look=FOURTH._replace(steps=NONE),
            link=("How the repository stands", "/d/muster-gitops"),
        ),
        panels.number(
            "Drift",
            "Differences between git and what is observed; `muster drift` lists them. Orange from "
            "one on. Most heal by themselves, and each kind has an alert of its own that says by "
            "when it should have.",
            "sum(muster_drift) or vector(0)",
            look=FOURTH._replace(steps=NONE),
            link=("Which kinds", "/d/muster-gitops"),
        ),
    ]


def _useful() -> list[panels.Panel]:
    return [
        panels.number(
            "GPUs allocated",
            "Part of all GPUs that attempts hold. It has no colours: few are well while nothing "
            "waits, and what else they could do is said beside it.",
            'sum(muster_pool_gpus{state="allocated"}) / (sum(muster_pool_gpus) > 0)',
            look=FIFTH._replace(unit="percentunit"),
            link=("Who has them", "/d/muster-queues"),
        ),
        panels.number(
            "Free beside waiting work",
            "Part of all GPUs that is free while work waits for as many: the smaller of the two. "
            "Fragments and room that is kept for a gang cost some; orange from a tenth on. From a "
            "quarter on, red, one node in four works for nobody while people wait, if only because "
            "they wait for another model.",
            f'clamp_max(sum(muster_pool_gpus{{state="free"}}), scalar({FOR_ROOM} or vector(0))) '
            "/ (sum(muster_pool_gpus) > 0)",
            look=FIFTH._replace(
                unit="percentunit", steps=((None, GOOD), (0.1, WARNING), (0.25, BAD))
            ),
            link=("What they wait for", "/d/muster-waiting"),
        ),
        panels.number(
            "GPUs at work",
            "Mean utilisation of the GPUs that a task has; those that are not measured are left "
            "out, and counted beside it. Below 80 % orange: loading of data or one slow rank holds "
            "them up. Below half, red, two jobs could share what one has.",
            f"avg({BUSY})",
            look=FIFTH._replace(unit="percentunit", steps=panels.RISING),
            link=("Which do nothing", "/d/muster-nodes"),
        ),
        panels.number(
            "GPUs not measured",
            "GPUs that a task has and of which nobody tells the utilisation: MIG instances, "
            "simulated ones, and nodes that are not scraped. Blue: it says how much the number "
            "before leaves out.",
            "count(muster_node_gpu_allocated == 1 unless on (node, gpu) "
            "muster_gpu_utilization_ratio) or vector(0)",
            look=FIFTH,
            link=("Nodes and GPUs", "/d/muster-nodes"),
        ),
        panels.number(
            "GPUs that can't be used",
            "Lost, missing, failed, or without an answer of the driver. Red from one on: its node "
            "takes no new work, and what ran on it may have to be run again. None where no node "
            "tells of its GPUs.",
            'sum(max by (node, gpu) (muster_gpu_state{state!="ok"}))',
            look=Look(width=4, steps=NONE_AT_ALL),
            link=("Which", "/d/muster-nodes"),
        ),
    ]


def _waiting() -> list[panels.Panel]:
    return [
        panels.number(
            "Jobs waiting",
            "Pending jobs of all queues. Blue: a cluster that is used has a queue; how long it is "
            "says the next number.",
            'sum(muster_jobs{state="Pending"}) or vector(0)',
            look=FOURTH,
            link=("What they wait for", "/d/muster-waiting"),
        ),
        panels.number(
            "Oldest that waits",
            "How long the oldest pending job has waited, of those that waiting can start. Orange "
            "from four hours on, as the alert of gangs; red from a day on, as that of other jobs.",
            "time() - min(muster_oldest_pending_timestamp_seconds)",
            look=FOURTH._replace(unit="s", steps=((None, GOOD), (4 * 3600, WARNING), (86400, BAD))),
            link=("What it waits for", "/d/muster-waiting"),
        ),
        panels.number(
            "Will never start",
            "Pending jobs that no waiting starts: too large for every node, refused, or behind a "
            "job that ended the wrong way. Orange from one on: its owner has to act, and "
            "`muster explain JOB` says how.",
            f'sum(muster_pending_jobs{{reason=~"{NEVER}"}}) or vector(0)',
            look=FOURTH._replace(steps=NONE),
            link=("Which", "/d/muster-waiting"),
        ),
        panels.number(
            "Less than guaranteed",
            "GPUs that queues are guaranteed and have not, though work waits that would fit in "
            "them. Orange from one on: victims may still be in their grace. After half an hour an "
            "alert comes.",
            "sum(muster_queue_starved_gpus) or vector(0)",
            look=FOURTH._replace(steps=NONE),
            link=("Which queues", "/d/muster-queues"),
        ),
    ]


def _control() -> list[panels.Panel]:
    return [
        panels.number(
            "Critical alerts",
            "Alerts of Muster's rules that fire with severity `critical`: somebody has to act now. "
            "Red from one on.",
            FIRING % "critical",
            look=FIFTH._replace(steps=NONE_AT_ALL),
            link=("What fires", "/alerting/list"),
        ),
        panels.number(
            "Other alerts",
            "Those that fire with severity `warning`: to be seen to today. Orange from one on.",
            FIRING % "warning",
            look=FIFTH._replace(steps=NONE),
            link=("What fires", "/alerting/list"),
        ),
        panels.number(
            "Nodes not ready",
            "Nodes of pools that take no new work: drained, unhealthy, silent or gone. Orange from "
            "one on: one is repaired tomorrow; that many are away at once is an alert. Machines "
            "that no pool declares are drift, and not counted here.",
            'sum(muster_nodes{pool!="", state!="Ready"}) or vector(0)',
            look=FIFTH._replace(steps=NONE),
            link=("Which", "/d/muster-nodes"),
        ),
        panels.number(
            "Slow answers",
            "What 95 % of the calls take at most that don't wait on purpose, over five minutes. "
            "From 0.2 s on orange: people notice. From a second on, red, an alert comes.",
            control.slowest_answers(over="5m"),
            look=FIFTH._replace(unit="s", steps=((None, GOOD), (0.2, WARNING), (1, BAD))),
            link=("Which calls", "/d/muster-control-plane"),
        ),
        panels.number(
            "Last decision",
            "Age of the loop's page: it is made after each cycle, and every half minute without. "
            "After a minute orange; after two, red, an alert comes.",
            "time() - muster_page_timestamp_seconds",
            look=Look(width=4, unit="s", steps=((None, GOOD), (60, WARNING), (120, BAD))),
            link=("How it is", "/d/muster-control-plane"),
        ),
    ]


def _over_time() -> list[panels.Panel]:
    return [
        panels.lines(
            "GPUs by state",
            "GPUs that attempts hold, that are free, and that are away with their node. The sum is "
            "what the cluster has.",
            {"{{state}}": "sum by (state) (muster_pool_gpus)"},
            stacked=True,
        ),
        panels.lines(
            "Work of allocated GPUs",
            "Part of the time in which a kernel ran on GPUs that a task has, the mean and the "
            "tenth of them that does least.",
            {"mean": f"avg({BUSY})", "lowest tenth": f"quantile(0.1, {BUSY})"},
            look=Look(unit="percentunit", most=1),
        ),
        panels.lines(
            "Jobs that wait, by reason",
            "Pending jobs by their first reason; the dashboard *Why is work waiting* goes on from "
            "here.",
            {"{{reason}}": "sum by (reason) (muster_pending_jobs)"},
            stacked=True,
        ),
        panels.lines(
            "Jobs by state",
            "Jobs that are listed and alive, by state.",
            {"{{state}}": 'sum by (state) (muster_jobs{state=~"Held|Pending|Starting|Running"})'},
            stacked=True,
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
