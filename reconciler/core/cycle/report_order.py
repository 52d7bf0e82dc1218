"""The order of reports of nodes: which say something, and which a later one has overtaken."""

from collections.abc import Iterable, Iterator, Mapping

from reconciler.model.state import records


def in_order(
    reports: Iterable[records.NodeReport], known: Mapping[str, records.NodeRecord]
) -> Iterator[records.NodeReport]:
    """Yield reports, but those that a later one of the same agent has overtaken.

    Args:
        reports: of a cycle, as they came.
        known: nodes when the cycle began.
    """
    newest: dict[str, records.NodeRecord | records.NodeReport] = {}
    for report in reports:
        before = newest.get(report.node) or known.get(report.node)
        crossed = (
            before is not None
            and report.incarnation == before.incarnation
            and report.boot_id == before.boot_id
            and report.sequence < before.sequence
        )
        if crossed:
            continue
        if not tells_nothing(report):
            newest[report.node] = report
        yield report


def tells_nothing(report: records.NodeReport) -> bool:
    """Return True if a report only says that a part of one could not be processed."""
    reported = report.attempts or report.inventory or report.usage or report.remedies
    return bool(report.undecided) and not reported
