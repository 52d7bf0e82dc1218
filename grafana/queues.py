"""Dashboards of queues: who has what, against what was promised, and why work waits."""

from grafana_foundation_sdk.models import dashboard as models

from grafana import panels
from grafana.panels import BAD, GOOD, WARNING

QUEUE = '{queue=~"$queue"}'
#: What is exported of a queue in a pool that it names, in the order of columns.
POOL_AMOUNTS = ("guaranteed", "fair_share", "allocated", "demand", "limit")


def _queue_variable() -> object:
    return panels.variable("queue", "label_values(muster_jobs, queue)", "Queue.")


def _quantile(part: float, series: str, selector: str, by: str = "") -> str:
    le = f"le, {by}" if by else "le"
    rate = f"increase({series}_bucket{selector}[$__range])"
    return f"histogram_quantile({part}, sum by ({le}) ({rate}))"


def fairness() -> models.Dashboard:
    """Who gets what, and is it what was promised?"""
    return panels.board(
        "muster-queues",
        "Queues and fairness",
        "Who has what, against what was guaranteed and what would be fair?",
        {
            "Now": [
                panels.rows(
                    "GPUs of queues",
                    "Children are part of their parents. Fair is what a queue would have if all "
                    "that is wanted were shared by guarantee and weight.",
                    {
                        "guaranteed": f"max by (queue) (muster_queue_guaranteed_gpus{QUEUE})",
                        "fair": f"max by (queue) (muster_queue_fair_share_gpus{QUEUE})",
                        "allocated": f"max by (queue) (muster_queue_allocated_gpus{QUEUE})",
                        "borrowed": f"max by (queue) (muster_queue_borrowed_gpus{QUEUE})",
                        "demand": f"max by (queue) (muster_queue_demand_gpus{QUEUE})",
                        "limit": f"max by (queue) (muster_queue_limit_gpus{QUEUE})",
                        "weight": f"max by (queue) (muster_queue_weight_ratio{QUEUE})",
                    },
                    link=(
                        "Why its work waits",
                        "/d/muster-waiting?var-queue=${__data.fields.queue}",
                    ),
                )
            ],
            "Over time": _shares(),
            "By pool": _by_pool(),
            "Promises": _promises(),
        },
        [_queue_variable()],
    )


def _shares() -> list[panels.Panel]:
    return [
        panels.lines(
            "GPUs allocated",
            "GPUs that each queue has.",
            {"{{queue}}": f"muster_queue_allocated_gpus{QUEUE}"},
        ),
        panels.lines(
            "GPUs beyond the guarantee",
            "What queues borrow, all that queues without a guarantee have among it; it is given "
            "back when its owner asks.",
            {"{{queue}}": f"muster_queue_borrowed_gpus{QUEUE}"},
        ),
        panels.lines(
            "CPUs allocated",
            "CPUs that each queue has.",
            {"{{queue}}": f"muster_queue_allocated_cpus{QUEUE}"},
        ),
        panels.lines(
            "GPUs that pending work asks for",
            "Of each queue, children left out.",
            {"{{queue}}": f"muster_queue_requested_gpus{QUEUE}"},
        ),
    ]


def _by_pool() -> list[panels.Panel]:
    def of(what: str) -> str:
        return f"max by (queue, pool) (muster_queue_pool_{what}_gpus{QUEUE})"

    return [
        panels.rows(
            "GPUs of queues in pools",
            "Of queues that name pools in `flavors`: what is theirs in each. These amounts hold "
            "beside those of the whole cluster.",
            {what.replace("_share", ""): of(what) for what in POOL_AMOUNTS},
            link=(
                "Why its work waits",
                "/d/muster-waiting?var-queue=${__data.fields.queue}",
            ),
        ),
        panels.lines(
            "GPUs allocated in pools",
            "What queues have in the pools that they name in `flavors`.",
            {"{{queue}} in {{pool}}": of("allocated")},
        ),
        panels.lines(
            "GPUs beyond the guarantee in pools",
            "What queues borrow there; it is given back when its owner asks for that pool.",
            {"{{queue}} in {{pool}}": f"clamp_min({of('allocated')} - {of('guaranteed')}, 0)"},
        ),
    ]


def _promises() -> list[panels.Panel]:
    return [
        panels.lines(
            "Less than guaranteed",
            "GPUs that a queue is guaranteed and has not, though work waits that would fit in "
            "them. Should be 0 but for the time that victims are given; after half an hour an "
            "alert comes.",
            {
                "{{queue}}": f"muster_queue_starved_gpus{QUEUE}",
                "{{queue}} in {{pool}}": f"muster_queue_pool_starved_gpus{QUEUE}",
            },
            look=panels.Look(steps=((None, "transparent"), (1, BAD))),
        ),
        panels.lines(
            "Attempts asked to leave",
            "By reason. Preemption is how guarantees are kept; a steady stream of it wastes work.",
            {"{{reason}}": "sum by (reason) (increase(muster_evictions_total[$__rate_interval]))"},
            stacked=True,
        ),
        panels.bars(
            "Half of the jobs waited less than",
            "Median time from submission to first start within the range shown.",
            _quantile(0.5, "muster_job_wait_seconds", QUEUE, "queue"),
            "{{queue}}",
            look=panels.Look(unit="s"),
        ),
        panels.bars(
            "19 of 20 jobs waited less than",
            "95 % quantile of the same.",
            _quantile(0.95, "muster_job_wait_seconds", QUEUE, "queue"),
            "{{queue}}",
            look=panels.Look(unit="s"),
        ),
    ]


def waiting() -> models.Dashboard:
    """Why is work waiting?"""
    return panels.board(
        "muster-waiting",
        "Why is work waiting",
        "What waits, how much of it, for what, and since when? `muster explain JOB` tells of one.",
        {"What": _what(), "Since when": _since()},
        [_queue_variable()],
    )


def _what() -> list[panels.Panel]:
    return [
        panels.lines(
            "Jobs by reason",
            "Pending jobs by their first reason: the one that has to pass before any other counts.",
            {"{{reason}}": f"sum by (reason) (muster_pending_jobs{QUEUE})"},
            stacked=True,
        ),
        panels.lines(
            "GPUs by reason",
            "GPUs that they ask for. Large `InsufficientResources` beside free GPUs is a matter "
            "of shapes: fragmentation, selectors, topology.",
            {"{{reason}}": f"sum by (reason) (muster_pending_gpus{QUEUE})"},
            stacked=True,
        ),
        panels.rows(
            "By queue and reason",
            "Jobs, and GPUs that they ask for.",
            {
                "jobs": f"sum by (queue, reason) (muster_pending_jobs{QUEUE})",
                "GPUs": f"sum by (queue, reason) (muster_pending_gpus{QUEUE})",
            },
            look=panels.Look(width=12),
        ),
        panels.lines(
            "Asked for and free",
            "GPUs that all pending work asks for beside those that are free, or away with nodes.",
            {
                "asked for": "sum(muster_pending_gpus)",
                "free": 'sum(muster_pool_gpus{state="free"})',
                "away": 'sum(muster_pool_gpus{state="unavailable"})',
            },
        ),
        panels.bars(
            "Budgets spent",
            "Part of each budget that ended work has used within its window. From 70 % on orange; "
            "from 90 % on, red, an alert comes. When it is spent work waits as `OverBudget`.",
            "muster_quota_spent_gpu_seconds / muster_quota_budget_gpu_seconds",
            "{{quota}}",
            look=panels.Look(
                unit="percentunit", steps=((None, GOOD), (0.7, WARNING), (0.9, BAD)), most=1
            ),
        ),
    ]


def _since() -> list[panels.Panel]:
    return [
        panels.bars(
            "Oldest that waits",
            "Of each queue, gangs apart: jobs of several tasks that start together. Jobs that "
            "waiting can't start are left out. Orange from four hours on, as the alert of gangs; "
            "red from a day on, as that of other jobs.",
            f"time() - muster_oldest_pending_timestamp_seconds{QUEUE}",
            "{{queue}}, gang: {{gang}}",
            look=panels.Look(unit="s", steps=((None, GOOD), (4 * 3600, WARNING), (86400, BAD))),
        ),
        panels.heat(
            "How long jobs waited",
            "Of jobs that started: time from submission to first start. A point is a job, and "
            "leads to it.",
            "muster_job_wait_seconds",
            QUEUE,
            exemplars=True,
        ),
    ]
