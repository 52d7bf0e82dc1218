"""Budgets of nodes: how fast one may report, how much of the history it may fill, how often its
agent may start again.

A report costs its bytes before it is read, and what it adds to the journal before the loop gets it.
A node that has used up a budget is told to come later; every other node has budgets of its own.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

#: The bytes a second that one node may send, and how many it may send at once.
REPORT_BYTES_PER_S, REPORT_BYTES_BURST = 2**20, 16 * 2**20
#: The bytes a second, packed, that one node may add to the journal, and how many at once. The
#: journal has 512 MiB, so one node alone would take three days to fill it.
HISTORY_BYTES_PER_S, HISTORY_BYTES_BURST = 2 * 2**10, 32 * 2**20
#: What a node may add to the journal besides, a second, for each byte of what it is assigned: each
#: of its tasks is told of with every poll.
HISTORY_PER_ASSIGNED = 1 / 16
#: How often an agent of one node may take over from another: so many at once, then one each time.
RESTARTS_BURST, RESTART_EVERY_S = 20, 30.0
#: The most nodes whose budgets are known; the one that reported longest ago begins anew.
NODES_MAX = 50_000
#: Why a report was refused, as the metric counts it.
SIZE, CONTENT, RATE, HISTORY, RESTARTS = "size", "content", "rate", "history", "restarts"
REASONS = (SIZE, CONTENT, RATE, HISTORY, RESTARTS)


class OverBudgetError(Exception):
    """Error: a node has used up a budget; the message says which."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Allowance:
    """An amount that is used up and grows back.

    Use beyond what is left is a debt, so that a large report passes once; nothing passes before the
    debt is paid.

    Args:
        per_s: how much grows back in a second.
        most: how much there is at first, and at most.
        now: seconds that only grow.
    """

    def __init__(self, per_s: float, most: float, now: float) -> None:
        self.per_s = per_s
        self._most = most
        self._left = most
        self._at = now

    def wait_s(self, now: float) -> float:
        """Return in how many seconds something may be used; 0: now."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self.per_s)
        self._at = now
        return 0.0 if self._left > 0 else (1 - self._left) / self.per_s

    def use(self, amount: float) -> None:
        """Use up an amount."""
        self._left -= amount


class _NodeBudget:
    """The allowances of one node."""

    def __init__(self, now: float) -> None:
        self.sent = Allowance(REPORT_BYTES_PER_S, REPORT_BYTES_BURST, now)
        self.history = Allowance(HISTORY_BYTES_PER_S, HISTORY_BYTES_BURST, now)
        self.restarts = Allowance(1 / RESTART_EVERY_S, RESTARTS_BURST, now)


class ReportBudgets:
    """The budgets of all nodes, by name, and counts of refused reports by the reason.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._clock = clock
        self._by_node: OrderedDict[str, _NodeBudget] = OrderedDict()

    def _of(self, node: str) -> _NodeBudget:
        """Return the budget of a node that reports now."""
        found = self._by_node.get(node)
        if found is None:
            found = self._by_node[node] = _NodeBudget(self._clock())
            if len(self._by_node) > NODES_MAX:
                self._by_node.popitem(last=False)
        self._by_node.move_to_end(node)
        return found

    def _check(self, reason: str, allowance: Allowance, message: str) -> None:
        wait_s = allowance.wait_s(self._clock())
        if wait_s > 0:
            self.refused[reason] += 1
            raise OverBudgetError(message, wait_s)

    def send(self, node: str, size: int) -> None:
        """Let a node send so many bytes.

        Raises:
            OverBudgetError: it has sent too many.
        """
        sent = self._of(node).sent
        self._check(
            RATE,
            sent,
            f"node {node} reports too much: at most {REPORT_BYTES_PER_S} bytes a second, "
            f"{REPORT_BYTES_BURST} at once",
        )
        sent.use(size)

    def record(self, node: str, size: int, assigned: int = 0) -> None:
        """Let a node add so many bytes to the journal.

        Args:
            node: its name.
            size: of its news, packed.
            assigned: bytes of its set of assignments, which no node can make larger.

        Raises:
            OverBudgetError: it has added too many.
        """
        history = self._of(node).history
        history.per_s = HISTORY_BYTES_PER_S + assigned * HISTORY_PER_ASSIGNED
        self._check(
            HISTORY,
            history,
            f"node {node} fills the history of all others: at most {history.per_s:.0f} bytes a "
            f"second of news, {HISTORY_BYTES_BURST} at once",
        )
        history.use(size)

    def require_restart(self, node: str) -> None:
        """Raise if the agent of a node has started too often.

        Raises:
            OverBudgetError: another start has to wait.
        """
        self._check(
            RESTARTS,
            self._of(node).restarts,
            f"node {node}: its agent has started again {RESTARTS_BURST} times; one more start "
            f"counts each {RESTART_EVERY_S:.0f} s",
        )

    def restarted(self, node: str) -> None:
        """Note that another agent speaks for a node."""
        self._of(node).restarts.use(1)
