"""Dashboards of what decides: git and drift, and the control plane itself."""

from grafana_foundation_sdk.models import dashboard as models

from grafana import panels
from grafana.panels import BAD, GOOD, WARNING


def gitops() -> models.Dashboard:
    """Is the cluster what git says?"""
    return panels.board(
        "muster-gitops",
        "GitOps and drift",
        "Is the cluster what git says? What is refused, how late are commits, what drifted?",
        {"Git": _git(), "Drift": _drift()},
    )


def _git() -> list[panels.Panel]:
    return [
        panels.number(
            "Not in force since",
            "Time since the head of the branch was last in force as a whole: after ten minutes "
            "orange, after an hour red.",
            "muster_page_timestamp_seconds - muster_sync_in_force_timestamp_seconds",
            look=panels.Look(unit="s", steps=((None, GOOD), (600, WARNING), (3600, BAD)), width=6),
        ),
        panels.number(
            "Last read",
            "Time since the repository could be read: after five minutes orange; after a quarter "
            "of an hour, red, an alert comes.",
            "muster_page_timestamp_seconds - muster_sync_last_success_timestamp_seconds",
            look=panels.Look(unit="s", steps=((None, GOOD), (300, WARNING), (900, BAD)), width=6),
        ),
        panels.number(
            "Errors in git",
            "What is refused of what is written; `muster status` lists it with file and line.",
            'muster_sync_problems{severity="error"}',
            look=panels.Look(steps=((None, GOOD), (1, BAD)), width=6),
        ),
        panels.number(
            "Suspended",
            "What git or an override suspends, and held jobs: it looks well and does nothing.",
            "sum(muster_suspended_objects)",
            look=panels.Look(steps=((None, GOOD), (1, WARNING)), width=6),
        ),
        panels.states(
            "How the repository stands",
            "In force, refused or held, or not readable, over time.",
            "muster_sync_state",
            "{{state}}",
            {"0": ("", "transparent"), "1": ("yes", "blue")},
        ),
        panels.rows(
            "Revisions",
            "The commit that was tried last, and those whose structure and jobs are in force.",
            {"is": "muster_sync_revision_info"},
            hide=("is",),
            look=panels.Look(width=12),
        ),
        panels.heat(
            "From commit to in force",
            "Time from a commit until the cluster goes by it.",
            "muster_sync_lag_seconds",
        ),
        panels.lines(
            "Looks at the repository",
            "Looks by what they came to.",
            {"{{result}}": "increase(muster_syncs_total[$__rate_interval])"},
            stacked=True,
        ),
    ]


def _drift() -> list[panels.Panel]:
    return [
        panels.lines(
            "Drift by kind",
            "Differences between git and what is observed.",
            {"{{kind}}": "sum by (kind) (muster_drift)"},
            stacked=True,
        ),
        panels.rows(
            "Drift now",
            "By kind, severity and pool; `muster drift` names each and says what to do.",
            {"differences": "muster_drift"},
            look=panels.Look(width=12),
        ),
        panels.lines(
            "What was done about it",
            "Tries at making differences right, by how they ended: done, failed, or lost with the "
            "node that was to carry them out.",
            {
                "{{verb}} {{result}}": "sum by (verb, result) "
                "(increase(muster_remediations_total[$__rate_interval]))"
            },
            stacked=True,
        ),
        panels.number(
            "Given up",
            "Differences that Muster was to make right, and does nothing more about: a person has "
            "to. `muster drift` says why.",
            "sum(muster_drift_given_up) or vector(0)",
            look=panels.Look(steps=((None, panels.GOOD), (1, panels.BAD)), width=12),
        ),
    ]


def control_plane() -> models.Dashboard:
    """Is the control plane well?"""
    return panels.board(
        "muster-control-plane",
        "Control plane",
        "Is the loop in time, is the store quick, does the server answer?",
        {"Loop": [*_loop(), *_cycles()], "Store": _store(), "Server": _server()},
    )


def _loop() -> list[panels.Panel]:
    return [
        panels.number(
            "Leader's epoch",
            "Grows with each controller that begins to lead.",
            "muster_leader_epoch",
            look=panels.Look(unit="none", width=4),
        ),
        panels.number(
            "Version", "Version of the controller.", "count by (version) (muster_build_info)",
            name="version",
            look=panels.Look(width=4),
        ),
        panels.number(
            "Up since",
            "Time since the loop began.",
            "time() - muster_process_start_timestamp_seconds",
            look=panels.Look(unit="s", width=4),
        ),
        panels.number(
            "Memory of the loop",
            "Resident memory of the loop's process.",
            "muster_process_resident_memory_bytes",
            look=panels.Look(unit="bytes", width=4),
        ),
        panels.number(
            "CPU of the loop",
            "Cores that the loop's process takes. It has one: from 0.8 on (red) it "
            "falls behind; orange from half on.",
            "rate(muster_process_cpu_seconds_total[$__rate_interval])",
            look=panels.Look(
                unit="percentunit", steps=((None, GOOD), (0.5, WARNING), (0.8, BAD)), width=4
            ),
        ),
        panels.number(
            "Slow cycles",
            "What 95 % of the cycles take at most. From a second on orange; from 2.5 s on, red, "
            "starts come late and an alert comes.",
            "histogram_quantile(0.95, sum by (le) (rate("
            "muster_cycle_duration_seconds_bucket[$__rate_interval])))",
            look=panels.Look(unit="s", steps=((None, GOOD), (1, WARNING), (2.5, BAD)), width=4),
        ),
    ]  # fmt: skip


def _cycles() -> list[panels.Panel]:
    return [
        panels.heat(
            "Duration of cycles",
            "From a cycle's input to its acts.",
            "muster_cycle_duration_seconds",
        ),
        panels.lines(
            "Phases of the cycle",
            "Where the loop's time goes. `commit` is the disk, `publish` the page of metrics.",
            {"{{phase}}": "rate(muster_cycle_phase_seconds_total[$__rate_interval])"},
            look=panels.Look(unit="percentunit"),
            stacked=True,
        ),
        panels.lines(
            "Cycles",
            "Cycles a second: one for each bunch of input.",
            {"cycles": "rate(muster_cycles_total[$__rate_interval])"},
            look=panels.Look(unit="ops"),
        ),
        panels.lines(
            "Decisions",
            "Attempts started, stopped, given up and acknowledged, a second.",
            {"{{action}}": "rate(muster_actions_total[$__rate_interval])"},
            look=panels.Look(unit="ops"),
        ),
    ]  # fmt: skip


def _store() -> list[panels.Panel]:
    return [
        panels.heat(
            "Duration of commits",
            "Time to make a cycle durable.",
            "muster_store_commit_duration_seconds",
        ),
        panels.lines(
            "Size of the store",
            "The store, bounded by retention, with its write-ahead log. The log alone: it is "
            "started over above 64 MiB; above 512 MiB an alert comes.",
            {"store": "muster_store_size_bytes", "its log": "muster_store_log_size_bytes"},
            look=panels.Look(unit="bytes", width=6),
        ),
        panels.lines(
            "Room on its disk",
            "Part of the disk that is left. Below a tenth an alert comes.",
            {"free": "muster_state_disk_free_bytes / muster_state_disk_size_bytes"},
            look=panels.Look(unit="percentunit", most=1, width=6),
        ),
    ]


#: Calls that answer at once; syncs, events and followed logs wait on purpose.
QUICK = '{handler!~".*sync.*|.*events|.*logs.*"}'


def slowest_answers(by: str = "", over: str = "$__rate_interval") -> str:
    """Return what 95 % of the answers take at most, by labels."""
    les = f"le, {by}" if by else "le"
    rate = f"rate(muster_api_request_duration_seconds_bucket{QUICK}[{over}])"
    return f"histogram_quantile(0.95, sum by ({les}) ({rate}))"


def _server() -> list[panels.Panel]:
    return [
        panels.lines(
            "Requests by handler",
            "Answers a second.",
            {"{{handler}}": "sum by (handler) (rate(muster_api_requests_total[$__rate_interval]))"},
            look=panels.Look(unit="reqps"),
        ),
        panels.lines(
            "Answers by status",
            "Answers a second, by class of their status. 5xx: loop or store are not there.",
            {"{{status}}": "sum by (status) (rate(muster_api_requests_total[$__rate_interval]))"},
            look=panels.Look(unit="reqps"),
            stacked=True,
        ),
        panels.lines(
            "Slow answers",
            "What 95 % of the answers take at most; syncs, events and logs wait on purpose and "
            "are left out. A minute is the most that is told apart.",
            {"{{handler}}": slowest_answers("handler")},
            look=panels.Look(unit="s"),
        ),
        panels.lines(
            "Agents",
            "Agents with an open poll, and between two.",
            {"{{state}}": "muster_api_sessions"},
            stacked=True,
            look=panels.Look(width=6),
        ),
        panels.lines(
            "Server process",
            "Cores that the server's process takes.",
            {"CPU": "rate(muster_api_process_cpu_seconds_total[$__rate_interval])"},
            look=panels.Look(unit="percentunit", width=6),
        ),
    ]
