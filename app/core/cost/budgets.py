"""Budgets of clients: how much each may consume in a period, and who has spent it. Pure, no clock.

A period is one of the calendar, in UTC: the hour, the day, the week from Monday on, or 30 days, counted from
1970. So what was spent before a restart is in whole hours of the ledger.
"""

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple

from app.core.cost.ledger import Hour
from app.core.cost.prices import CORE_SECONDS, Prices, spent
from app.core.cost.rows import began_at
from app.core.errors import ErrorCode, Failure

_DAY_S: Final = 86_400
_PERIODS: Final = {"h": 3600, "d": _DAY_S, "w": 7 * _DAY_S, "30d": 30 * _DAY_S}
_MONDAY_S: Final = 4 * _DAY_S
"""The first Monday after the epoch."""
_BUDGET: Final = re.compile(
    r"(?P<amount>\d{1,12}(?:\.\d{1,6})?) (?:(?P<currency>[A-Z]{3})|core-(?P<time>seconds|hours))"
    r"/(?P<period>h|d|w|30d)",
    re.ASCII,
)


class Budget(NamedTuple):
    """What may be spent in each period.

    Attributes:
        amount: in `unit`.
        unit: `CORE_SECONDS` or a currency.
        period_s: seconds.
        text: as it was given.
    """

    amount: float
    unit: str
    period_s: int
    text: str

    def began(self, now: float) -> float:
        """Return when the present period began, Unix seconds."""
        offset = _MONDAY_S if self.period_s == _PERIODS["w"] else 0
        return now - (now - offset) % self.period_s


def parse_budget(text: str) -> Budget:
    """Parse a budget, such as `5 EUR/d`, `3600 core-seconds/h` or `100 core-hours/30d`.

    Raises:
        ValueError: it is none.
    """
    found = _BUDGET.fullmatch(text)
    if found is None or not float(found["amount"]):
        form = "of the form '5 EUR/d' or '3600 core-seconds/h' (or core-hours; periods h, d, w and 30d)"
        raise ValueError(f"the budget '{text}' is not {form}")
    amount, unit = float(found["amount"]), found["currency"] or CORE_SECONDS
    return Budget(amount * (3600 if found["time"] == "hours" else 1), unit, _PERIODS[found["period"]], text)


def unpriced(budgets: Mapping[str, Budget], prices: Prices | None) -> str:
    """Return why the budgets of clients, by name, cannot be held with these prices; "" if they can."""
    for name, budget in budgets.items():
        if budget.unit != CORE_SECONDS and (prices is None or budget.unit != prices.currency):
            has = "there is no price file" if prices is None else f"the price file is in {prices.currency}"
            return f"the token '{name}' has a budget of '{budget.text}', but {has}"
    return ""


class Spending:
    """What clients have spent of their budgets in the present periods.

    Args:
        budgets: by name of client.
    """

    def __init__(self, budgets: Mapping[str, Budget] | None = None) -> None:
        self._budgets: dict[str, Budget] = {}
        self._spent: dict[str, tuple[float, float]] = {}  # when the period began, and what was spent in it
        self.replace(budgets or {})

    def replace(self, budgets: Mapping[str, Budget]) -> None:
        """Put other budgets into force; what was spent counts on where unit and period stay."""
        for name, old in self._budgets.items():
            new = budgets.get(name)
            if new is None or (new.unit, new.period_s) != (old.unit, old.period_s):
                self._spent.pop(name, None)
        self._budgets = dict(budgets)

    def units(self) -> dict[str, str]:
        """Return the unit in which each client's spending is told."""
        return {name: budget.unit for name, budget in self._budgets.items()}

    def since(self, now: float) -> float:
        """Return when the earliest of the present periods began: from then on the ledger counts."""
        return min((budget.began(now) for budget in self._budgets.values()), default=now)

    def spend(self, name: str, amount: float, at: float) -> None:
        """Count what a client has spent at a moment (Unix seconds); one without a budget is not counted."""
        budget = self._budgets.get(name)
        if budget is None:
            return
        began, (period, before) = budget.began(at), self._spent.get(name, (0.0, 0.0))
        if began >= period:
            self._spent[name] = began, amount + (before if began == period else 0.0)

    def recover(self, hours: Iterable[Hour], prices: Prices | None) -> None:
        """Count what the ledger has of the time before."""
        for hour in hours:
            for row in hour.rows:
                if row.kind == "usage" and row.token in self._budgets:
                    amount = spent(row, self._budgets[row.token].unit, prices)
                    self.spend(row.token, amount, began_at(hour.hour))

    def left(self, name: str, now: float) -> float:
        """Return what a client may still spend in its period; infinity without a budget."""
        budget = self._budgets.get(name)
        if budget is None:
            return float("inf")
        period, amount = self._spent.get(name, (0.0, 0.0))
        return budget.amount - (amount if period == budget.began(now) else 0.0)

    def refusals(self, now: float) -> dict[str, Failure]:
        """Return what requests of the clients that have nothing left are answered."""
        return {
            name: _refusal(name, budget, now)
            for name, budget in self._budgets.items()
            if self.left(name, now) <= 0
        }


def _refusal(name: str, budget: Budget, now: float) -> Failure:
    wait = budget.began(now) + budget.period_s - now
    text = f"the token '{name}' has spent its budget of {budget.text}, try again in {ceil(wait)} s"
    return Failure(ErrorCode.RESOURCE_EXHAUSTED, text, retry_after_s=wait)
