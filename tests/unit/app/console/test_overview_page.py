"""The page of all models as a browser shows it: large and small, light and dark, by keyboard, to axe-core."""

from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from app.core.observability.counters import VersionCounters
from app.core.observability.durations import FINE_S
from app.ingress import fronts
from app.ingress.fronts import Parts
from app.ingress.rest.openapi.insight import Insight
from app.ingress.service.overview import Overview, VersionRow
from tests.browser import SIZES, opened
from tests.unit.app.console.conftest import Consoles
from tests.unit.app.console.running_console import RunningConsole, guard_of_tokens
from tests.unit.app.http_fakes import FakeService

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
REASON = f"Internal: No module named 'missing' {HOSTILE} " + "/a/very/long/path" * 20


class Models(FakeService):
    """So many models that are ready and busy, and one of a hostile name that failed."""

    def __init__(self, count: int = 500) -> None:
        super().__init__()
        self.count = count
        self.looks = 0

    async def overview(self, cursor: str) -> Overview:
        self.looks += 1
        rows = [self._row(number) for number in range(self.count)]
        rows.append(VersionRow(HOSTILE, "1", "UNAVAILABLE", REASON, "onnxruntime"))
        names = [(row.name, row.version) for row in rows]
        return Overview(f"fake.{self.looks}", float(self.looks), True, FINE_S, rows, names)

    def _row(self, number: int) -> VersionRow:
        done = self.looks * number
        buckets = {FINE_S.index(0.0025): done}
        figures = VersionCounters(
            float(self.looks),
            done,
            0,
            done * 10**6,
            0,
            done * 10**6,
            done,
            done,
            memory=3 << 20,
            buckets=buckets,
        )
        name = f"model{number:03}"
        return VersionRow(name, "1", "READY", "", "python", instances=2, replicas=1, figures=figures)


@pytest.fixture
def many(consoles: Consoles) -> Iterator[RunningConsole]:
    with consoles(service=Models()) as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_page_fits_and_has_contrast(consoles: Consoles, browser: Any, size: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    with (
        consoles(service=Models(20)) as running,
        # Its script is not the page's: a policy without foreign scripts keeps it out, too.
        opened(browser, running.url, size, scheme, bypass_csp=True) as page,
    ):
        page.get_by_role("row", name="model003").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["impact"]) for each in found] == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(13, 20, 24)") == (scheme == "dark")


def test_figures_of_many_models_are_live(browser: Any, many: RunningConsole) -> None:
    with opened(browser, many.url) as page:
        page.get_by_text("501 rows").wait_for()
        assert page.locator("tbody tr").count() < 100  # those in sight
        page.get_by_role("button", name="Requests").click()
        page.get_by_role("button", name="Requests").click()
        row = page.get_by_role("row", name="model499")
        row.get_by_text("499/s").wait_for()
        assert "2.39 ms" in row.inner_text() and "3 MiB" in row.inner_text()


def test_hostile_text_is_shown_as_it_is(browser: Any, many: RunningConsole) -> None:
    with opened(browser, many.url) as page:
        link = page.get_by_role("region", name="Models that do not work").get_by_role("link")
        link.wait_for()
        assert link.inner_text() == f"{HOSTILE} 1"
        assert page.locator("main img, main script").count() == 0
        assert "No module named 'missing'" in page.locator(".why").inner_text()
        assert page.locator(".remedy").inner_text().startswith("Install the package for the model")


def test_model_is_found_by_keyboard_alone(browser: Any, many: RunningConsole) -> None:
    with opened(browser, many.url) as page:
        page.get_by_text("501 rows").wait_for()
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.type") == "search":
                break
        page.keyboard.type("model4")
        page.get_by_text("100 of 501 rows").wait_for()
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "TR":
                break
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.dataset.id") == "model499:1"
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/#/model/model401/1")


def test_row_keeps_the_focus_while_figures_change(browser: Any, many: RunningConsole) -> None:
    with opened(browser, many.url) as page:
        page.locator("tbody tr").nth(3).focus()
        page.keyboard.press("ArrowDown")
        chosen = page.evaluate("document.activeElement.dataset.id")
        before = many.service.looks
        page.wait_for_function("() => true")
        while many.service.looks < before + 3:
            page.wait_for_timeout(100)
        assert page.evaluate("document.activeElement.dataset.id") == chosen


def test_hidden_page_asks_for_nothing(browser: Any, many: RunningConsole) -> None:
    with opened(browser, many.url) as page:
        page.get_by_text("501 rows").wait_for()
        asked: list[str] = []
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.wait_for_timeout(1500)
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(2500)
        assert asked == []
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        with page.expect_request("**/console/live**"):
            pass


def test_token_is_asked_for_and_opens_the_page(consoles: Consoles, browser: Any) -> None:
    with consoles(service=Models(), guard=guard_of_tokens()) as running:
        context = browser.new_context()
        page = context.new_page()
        page.goto(running.url)
        dialog = page.get_by_role("dialog", name="Token")
        dialog.get_by_label("Token").fill("web")
        page.keyboard.press("Enter")
        page.get_by_text("501 rows").wait_for()
        assert page.evaluate("location.href + document.cookie + localStorage.length") == f"{running.url}0"
        page.get_by_role("button", name="Token").click()
        dialog.get_by_label("Token").fill("guessed")
        page.keyboard.press("Enter")
        dialog.wait_for()
        assert page.get_by_text("501 rows").count() == 0
        context.close()


def test_requests_that_the_tape_lacks_are_an_alert(browser: Any, consoles: Consoles) -> None:
    dropped = count(1)

    def samples() -> dict[str, list[dict[str, Any]]]:
        return {"nereid_tape_dropped": [{"reason": "space", "value": next(dropped)}]}

    def insight(parts: Parts) -> Insight:
        return known(parts)._replace(samples=samples)

    known = fronts._insight
    often = patch("app.console.source.ALERTS_S", 0.5)
    with (
        patch.object(fronts, "_insight", insight),
        often,
        consoles(service=Models(3)) as running,
        opened(browser, running.url) as page,
    ):
        alerts = page.get_by_role("region", name="Alerts")
        alerts.get_by_role("link", name="The tape lacks requests: space").click()
        page.get_by_role("heading", name="Log", exact=True).wait_for()


def test_focus_outlives_new_figures(browser: Any, consoles: Consoles) -> None:
    with consoles(service=Models(3)) as running, opened(browser, running.url) as page:
        link = page.get_by_role("row").get_by_role("link", name="model001")
        link.focus()
        link.evaluate("node => { node.dataset.drawn = 'before' }")
        page.get_by_role("row").get_by_role("link", name="model001").and_(
            page.locator("a:not([data-drawn])")
        ).wait_for()
        assert page.evaluate("document.activeElement.textContent") == "model001 1"
