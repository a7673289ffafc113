"""What is told of costs, and whose requests are refused then."""

from collections.abc import Mapping

from app.core.cost.budgets import Budget, parse_budget
from app.core.cost.reports import CostAnswer, CostReport
from app.core.errors import ErrorCode, Failure
from app.cost.reporter import Clients, CostReporter
from app.cost.tap import CostTap


async def test_budgets_are_told_and_those_that_are_spent_are_held() -> None:
    reports: list[CostReport] = []
    refused: list[Mapping[str, Failure]] = []
    budgets: dict[str, Budget] = {"x": parse_budget("1 core-seconds/h")}

    async def send(report: CostReport) -> CostAnswer:
        reports.append(report)
        return CostAnswer(spent={"x": ("the token 'x' has spent it", 60.0), "gone": ("not here", 1.0)})

    reporter = CostReporter("i", "n", send, lambda: None, CostTap())
    await reporter.report()
    reporter.clients = Clients(lambda: budgets, refused.append)
    await reporter.report()
    assert reports == [
        CostReport("i", 1, "n", []),
        CostReport("i", 2, "n", [], None, {"x": "1 core-seconds/h"}),
    ]
    told = Failure(ErrorCode.RESOURCE_EXHAUSTED, "the token 'x' has spent it", retry_after_s=60.0)
    assert refused == [{"x": told}] and reporter.answer.spent


async def test_without_tokens_nothing_is_said_of_clients() -> None:
    reports: list[CostReport] = []

    async def send(report: CostReport) -> CostAnswer:
        reports.append(report)
        return CostAnswer()

    await CostReporter("i", "n", send, lambda: None, None).report()
    assert reports == [CostReport("i", 1, "n", None)]
