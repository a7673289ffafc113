"""Log, traces and server as a browser shows them, and a server that is killed and comes back."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from app.core.observability.log import PACKAGES
from app.ingress.tracing.observer import Observer
from app.ingress.tracing.recent import KeptTrace, Span
from tests.browser import SIZES, opened
from tests.unit.app.console.conftest import Consoles
from tests.unit.app.console.running_console import RunningConsole
from tests.unit.app.ingress.running_fronts import Running

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
STAMPS = [
    ("HTTP_RECV_START", 0.0), ("HTTP_RECV_END", 300.0), ("QUEUE_START", 400.0), ("COMPUTE_START", 900.0),
    ("COMPUTE_INPUT_END", 1000.0), ("COMPUTE_OUTPUT_START", 4000.0), ("COMPUTE_END", 4200.0),
    ("HTTP_SEND_START", 4500.0), ("HTTP_SEND_END", 5000.0),
]  # fmt: skip
TRACES = [
    KeptTrace(
        7, 1.7e9, 5000.0,
        [Span(1, 0, "ensemble", "1", HOSTILE, STAMPS), Span(2, 1, "step", "2", "", STAMPS[2:7]),
         Span(3, 2, "called", "1", "", STAMPS[3:6])],
    ),
]  # fmt: skip


@contextmanager
def traced() -> Iterator[None]:
    def recent(_: Observer, after: int = 0) -> Sequence[KeptTrace]:
        return [trace for trace in TRACES if trace.number > after]

    with patch.object(Observer, "recent_traces", recent):
        yield


@pytest.fixture
def logging_package() -> Iterator[logging.Logger]:
    """Yield a logger whose records the server keeps."""
    logger = logging.getLogger(PACKAGES[0])
    before = logger.handlers
    logger.handlers = [logging.NullHandler(), *before]
    yield logging.getLogger(f"{PACKAGES[0]}.test")
    logger.handlers = before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page_of", ["logs", "traces/7", "server"])
def test_pages_fit_and_have_contrast(
    console: RunningConsole, browser: Any, page_of: str, size: str, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    url = f"{console.url}#/{page_of}"
    with traced(), opened(browser, url, size, scheme, bypass_csp=True) as page:
        page.locator(".table, .log").first.wait_for()
        page.get_by_text("versions").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["impact"]) for each in found] == []


def test_log_is_followed_filtered_and_text(
    logging_package: logging.Logger, consoles: Consoles, browser: Any
) -> None:
    with consoles() as running, opened(browser, f"{running.url}#/logs") as page:
        logging_package.warning("first %s", HOSTILE)
        page.get_by_text(HOSTILE).wait_for()
        assert page.locator(".log img, .log script").count() == 0
        logging_package.error("second")
        page.get_by_text("second").wait_for()
        page.get_by_label("Lines", exact=True).select_option("error")
        page.get_by_text("second").wait_for()
        assert page.locator(".log li").count() == 1
        page.get_by_label("Lines", exact=True).select_option("info")
        page.get_by_text(HOSTILE).wait_for()
        page.get_by_label("With the text").fill("SECOND")
        assert page.locator(".log li").count() == 1


def test_trace_is_a_waterfall_with_steps_and_calls(console: RunningConsole, browser: Any) -> None:
    with traced(), opened(browser, f"{console.url}#/traces") as page:
        row = page.get_by_role("row", name="ensemble 1")
        row.focus()
        page.keyboard.press("Enter")
        drawn = page.get_by_role("img", name="Spans of the trace")
        drawn.wait_for()
        told = drawn.get_attribute("aria-label") or ""
        assert "ensemble 1: 5 ms; step 2: 3.8 ms; called 1: 3.1 ms" in told
        assert drawn.locator("rect.bar").count() == 6 + 4 + 2
        assert page.get_by_text(HOSTILE).first.is_visible()
        places = [each.get_attribute("x") for each in drawn.locator("text").all()[::2]]
        assert places == ["8", "22", "36"]  # indented below what called them


def test_server_page_has_settings_machine_and_charts(console: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{console.url}#/server") as page:
        page.get_by_label("Filter Settings").fill("http-port")
        page.get_by_role("row", name="--http-port").get_by_text(str(console.fronts.http_port)).wait_for()
        assert page.get_by_text("Processors busy").is_visible()
        assert page.get_by_role("img", name="Duration. p50: no data").is_visible()


def test_server_page_has_no_link_before_its_address_is_known(console: RunningConsole, browser: Any) -> None:
    held: list[Any] = []
    context = browser.new_context()
    page = context.new_page()
    page.route("**/console/live?*", lambda route: held.append(route))
    page.goto(f"{console.url}#/server")
    page.get_by_text("not known yet").first.wait_for()
    links = page.locator("main a")
    assert [each.inner_text() for each in links.all() if not each.inner_text().strip()] == []
    assert page.get_by_role("link", name="every path, to try").count() == 0
    held[0].continue_()
    page.get_by_role("link", name="every path, to try").wait_for()
    page.unroute_all(behavior="ignoreErrors")
    context.close()


def test_page_recovers_by_itself_when_the_server_is_back(
    tmp_path: Path, consoles: Consoles, browser: Any
) -> None:
    with consoles() as running:
        context = browser.new_context()
        page = context.new_page()
        page.goto(running.url)
        page.get_by_text("Ready · ").wait_for()
        port = running.fronts.http_port
        running.fronts.close()
        page.get_by_text("The server does not answer").wait_for()
        with patch("tests.unit.app.ingress.running_fronts.free_port", side_effect=[port, 0]):
            running.fronts = Running(tmp_path, grpc_port=0)
        page.get_by_text("Ready · ").wait_for()
        context.close()
