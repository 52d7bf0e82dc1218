"""Input of a cycle: what nodes, people and scripts sent, and how to split it for a search."""

from collections.abc import Mapping, Sequence

import msgspec

from reconciler.core import observed_state
from reconciler.core.cycle import report_order
from reconciler.model import desired
from reconciler.model.state import instance_records, records

#: Shown for a node if none of its whole reports can be processed.
UNDECIDED = (
    f"{desired.INTERNAL_ERROR} prevents its reports from being processed: the node gets no new "
    "work until one is; the controller's log has the trace"
)


class CycleInput(msgspec.Struct, frozen=True):
    """The input of one cycle, as ``records.Observed`` has it.

    Attributes:
        answered: when nodes were last answered, which renewed their leases.
        asked: overrides that people requested.
        provisioned: results of provisioner scripts.
        unheard: nodes none of whose reports can be processed. Sending one counts for nothing.
    """

    reports: tuple[records.NodeReport, ...] = ()
    answered: Mapping[str, float] = {}
    asked: tuple[records.OverrideRequest, ...] = ()
    provisioned: tuple[instance_records.OrderResult, ...] = ()
    unheard: frozenset[str] = frozenset()

    @property
    def is_bare(self) -> bool:
        """True if nobody sent anything."""
        return not (self.reports or self.asked or self.provisioned)

    def bare(self) -> "CycleInput":
        """Return the input without its contents, but with the times at which nodes were heard.

        Leases run from the last answer, and a node is not silent while a report of it waits.
        """
        heard = {
            report.node: report.received_at
            for report in self.reports
            if report.node not in self.unheard
        }
        later = {node: max(at, self.answered.get(node, at)) for node, at in heard.items()}
        return CycleInput(answered={**self.answered, **later})

    @property
    def is_notice(self) -> bool:
        """True if it only says that a node sent a report (see ``pieces``)."""
        return bool(self.reports) and all(map(report_order.tells_nothing, self.reports))

    def sources(self) -> list["CycleInput"]:
        """Return the input of each person, script and node on its own, in order.

        Nodes come last: they send a report again if no cycle processes it.
        """
        nodes: dict[str, list[records.NodeReport]] = {}
        for report in self.reports:
            nodes.setdefault(report.node, []).append(report)
        return [
            *[CycleInput(asked=(request,)) for request in self.asked],
            *[CycleInput(provisioned=(result,)) for result in self.provisioned],
            *[CycleInput(reports=tuple(reports)) for reports in nodes.values()],
        ]

    def pieces(self) -> list["CycleInput"]:
        """Divide a node's reports into its own state and each of its attempts.

        No piece claims to be complete, so what it leaves out is not taken for gone. The first
        piece only says that there are pieces. A piece itself has none.
        """
        found: list[records.NodeReport] = []
        for report in self.reports:
            if report.undecided:
                continue
            itself = msgspec.structs.replace(
                report, attempts=(), complete=False, undecided=UNDECIDED
            )
            bare = msgspec.structs.replace(itself, inventory=None, usage=None, remedies=())
            found += [bare] if bare == itself else [bare, itself]
            found += [
                msgspec.structs.replace(bare, attempts=(attempt,)) for attempt in report.attempts
            ]
        return [CycleInput(reports=(report,)) for report in found]

    @property
    def name(self) -> str:
        """The sender, if all of it is from one source."""
        if self.reports:
            report = self.reports[0]
            part = f"attempt {report.attempts[0].id} on " if len(report.attempts) == 1 else ""
            return f"{part}node {report.node}"
        if self.asked:
            return f"override {self.asked[0].id}"
        return f"the script of pool {self.provisioned[0].pool}" if self.provisioned else "nobody"


def join(inputs: Sequence[CycleInput]) -> CycleInput:
    """Return several inputs as one."""
    return CycleInput(
        reports=tuple(report for part in inputs for report in part.reports),
        asked=tuple(request for part in inputs for request in part.asked),
        provisioned=tuple(result for part in inputs for result in part.provisioned),
    )


def put_back(received: CycleInput, state: observed_state.ObservedState) -> None:
    """Keep an input that was not processed for the next cycle."""
    for report in received.reports:
        state.add_report(report)
    for request in received.asked:
        state.ask(request)
    for result in received.provisioned:
        state.add_provisioned(result)
