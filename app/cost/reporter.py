"""Tells the manager what was consumed here, and hears what it makes of it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from app.core.cost.budgets import Budget
from app.core.cost.reports import CostAnswer, CostReport
from app.core.errors import ErrorCode, Failure
from app.core.observability.reporter import Reporter
from app.cost.node_use import NodeWatch
from app.cost.tap import CostTap

BUDGET_PERIOD_S: Final = 1.0
"""Time from one report to the next where a client has a budget, which it may exceed for as long."""
Send = Callable[[CostReport], Awaitable[CostAnswer]]


class Clients(NamedTuple):
    """The tokens of clients.

    Attributes:
        budgets: returns the budgets of those that have one.
        refuse: takes what the requests of some of them are answered with from now on, and of no others.
    """

    budgets: Callable[[], Mapping[str, Budget]]
    refuse: Callable[[Mapping[str, Failure]], None]


class CostReporter(Reporter[CostReport, CostAnswer]):
    """Reports again and again.

    Args:
        name: of this process, and of no other.
        node: its node.
        send: sends a report.
        watch: measures the node; None where another process does.
        tap: counts requests of clients; None where they have no tokens.
        period_s: seconds from one report to the next, while no client has a budget.

    Attributes:
        answer: the manager's last one.
        clients: the tokens, once they are known.
    """

    def __init__(
        self,
        name: str,
        node: str,
        send: Send,
        watch: Callable[[], NodeWatch | None],
        tap: CostTap | None,
        period_s: float = 1.0,
    ) -> None:
        super().__init__("costs", send, period_s)
        self._usual_s = period_s
        self._name, self._node, self._watch, self._tap = name, node, watch, tap
        self.answer = CostAnswer()
        self.clients: Clients | None = None

    async def collect(self, number: int) -> CostReport:
        """Return what was consumed and answered since the last report."""
        watch = self._watch()
        use = None if watch is None else await watch.read()
        calls = None if self._tap is None else self._tap.take()
        found = {} if self.clients is None else self.clients.budgets()
        budgets = {name: budget.text for name, budget in found.items()}
        return CostReport(self._name, number, self._node, calls, use, budgets)

    def heard(self, report: CostReport, answer: CostAnswer) -> None:
        """Refuse the requests of clients that have spent their budgets."""
        self.answer = answer
        self._period_s = BUDGET_PERIOD_S if report.budgets else self._usual_s
        if self.clients is not None:
            self.clients.refuse(
                {
                    name: Failure(ErrorCode.RESOURCE_EXHAUSTED, text, retry_after_s=wait)
                    for name, (text, wait) in answer.spent.items()
                    if name in report.budgets
                }
            )
