"""Budgets: their text, their periods, and who has spent them."""

from datetime import UTC, datetime

import pytest

from app.core.cost.budgets import Spending, parse_budget, unpriced
from app.core.cost.ledger import Hour
from app.core.cost.prices import CORE_SECONDS, parse_prices
from app.core.cost.rows import LedgerRow
from app.core.errors import ErrorCode

PRICES = parse_prices("{currency: EUR, cpu_core_hour: 3600}")  # a second costs 1 EUR


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOON = at("2026-11-26T12:00:00")  # a Thursday


@pytest.mark.parametrize(
    ("text", "amount", "unit", "period"),
    [
        ("5 EUR/d", 5.0, "EUR", 86_400),
        ("0.25 USD/h", 0.25, "USD", 3600),
        ("3600 core-seconds/h", 3600.0, CORE_SECONDS, 3600),
        ("100 core-hours/30d", 360_000.0, CORE_SECONDS, 30 * 86_400),
        ("1 core-seconds/w", 1.0, CORE_SECONDS, 7 * 86_400),
    ],
)
def test_a_budget_is_an_amount_in_a_period(text: str, amount: float, unit: str, period: int) -> None:
    assert parse_budget(text) == (amount, unit, period, text)


@pytest.mark.parametrize(
    "text",
    ["", "5/d", "5 eur/d", "5EUR/d", "0 EUR/d", "-1 EUR/d", "5 EUR/m", "5 seconds/d", "5 EUR/d ", "٥ EUR/d"],
)
def test_another_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form '5 EUR/d' or '3600 core-seconds/h'"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("period", "began"),
    [
        ("h", "2026-11-26T12:00:00"),
        ("d", "2026-11-26T00:00:00"),
        ("w", "2026-11-23T00:00:00"),
        ("30d", "2026-11-03T00:00:00"),
    ],
)
def test_periods_are_those_of_the_calendar(period: str, began: str) -> None:
    assert parse_budget(f"5 EUR/{period}").began(NOON + 1800) == at(began)


def test_who_has_spent_its_budget_is_refused_until_the_period_ends() -> None:
    spending = Spending({"anna": parse_budget("10 core-seconds/h"), "ben": parse_budget("99 core-seconds/h")})
    for name in ("anna", "ben", "carl"):
        spending.spend(name, 9.5, NOON + 10)
    assert spending.refusals(NOON + 11) == {}
    spending.spend("anna", 0.5, NOON + 60)
    (name, failure), *others = spending.refusals(NOON + 600).items()
    assert (name, others, failure.code) == ("anna", [], ErrorCode.RESOURCE_EXHAUSTED)
    assert failure.retry_after_s == 3000
    assert failure.message == (
        "the token 'anna' has spent its budget of 10 core-seconds/h, try again in 3000 s"
    )
    assert spending.refusals(NOON + 3600) == {}
    assert spending.left("anna", NOON + 3600) == 10
    assert spending.left("carl", NOON) == float("inf")


def test_spending_of_a_period_that_is_over_does_not_count() -> None:
    spending = Spending({"anna": parse_budget("10 core-seconds/h")})
    spending.spend("anna", 8, NOON + 5)
    spending.spend("anna", 8, NOON - 5)
    assert spending.left("anna", NOON + 6) == 2


def test_spending_counts_on_when_the_amount_is_changed_alone() -> None:
    spending = Spending({"anna": parse_budget("10 core-seconds/h")})
    spending.spend("anna", 10, NOON)
    spending.replace({"anna": parse_budget("15 core-seconds/h")})
    assert spending.left("anna", NOON) == 5
    spending.replace({"anna": parse_budget("15 core-seconds/d")})
    assert spending.left("anna", NOON) == 15


def test_what_the_ledger_has_of_the_period_counts_after_a_restart() -> None:
    budgets = {"anna": parse_budget("10 EUR/d"), "ben": parse_budget("5 core-seconds/h")}
    spending = Spending(budgets)
    assert spending.since(NOON + 100) == at("2026-11-26T00:00:00")

    def hour(text: str, token: str, seconds: float) -> Hour:
        return Hour(text, [LedgerRow(text, "usage", "n", "wine", "1", token, cpu_seconds=seconds)], 0)

    hours = [
        hour("2026-11-25T23:00:00Z", "anna", 100.0),
        hour("2026-11-26T01:00:00Z", "anna", 4.0),
        hour("2026-11-26T11:00:00Z", "ben", 4.0),
        hour("2026-11-26T12:00:00Z", "anna", 3.0),
        hour("2026-11-26T12:00:00Z", "ben", 3.0),
    ]
    spending.recover(hours, PRICES)
    assert (spending.left("anna", NOON + 100), spending.left("ben", NOON + 100)) == (3, 2)


def test_a_budget_of_money_needs_prices_of_its_currency() -> None:
    budgets = {"anna": parse_budget("5 EUR/d")}
    assert unpriced(budgets, PRICES) == ""
    assert unpriced({"ben": parse_budget("5 core-seconds/d")}, None) == ""
    assert unpriced(budgets, None) == (
        "the token 'anna' has a budget of '5 EUR/d', but there is no price file"
    )
    assert unpriced({"ben": parse_budget("5 USD/d")}, PRICES).endswith("but the price file is in EUR")
