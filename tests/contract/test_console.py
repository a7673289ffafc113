"""The console's pages over a running server, as a browser shows them."""

import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.console.server import Console, Place
from app.console.upstream import Upstream
from app.transport.loops.thread import LoopThread
from tests.browser import chromium, opened
from tests.contract.conftest import Addresses

PICTURE = Path(__file__).parent.parent / "data" / "cat.jpg"
ENSEMBLE = "efficientnet_ensemble"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def console(server: Addresses) -> Iterator[str]:
    """Start a console over the server; return its address."""
    loop = LoopThread("console")
    made = Console(Upstream(f"http://{server.http}"), Place(port=0))
    yield f"http://127.0.0.1:{loop.call(made.start())}/"
    loop.call(made.stop())
    loop.stop()


@pytest.fixture(autouse=True)
def traffic(server: Addresses) -> Iterator[None]:
    """Classify a picture a few times a second."""
    done = threading.Event()

    def ask() -> None:
        address = f"http://{server.http}/v2/models/{ENSEMBLE}/infer"
        headers = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
        while not done.wait(0.2):
            request = urllib.request.Request(address, PICTURE.read_bytes(), headers)
            urllib.request.urlopen(request, timeout=60).close()

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    done.set()
    thread.join()


def test_models_have_live_figures(browser: Any, console: str) -> None:
    with opened(browser, console) as page:
        row = page.get_by_role("row", name=ENSEMBLE)
        row.get_by_text("ms").first.wait_for()
        page.get_by_role("button", name="Requests").click()
        page.get_by_role("button", name="Requests").click()
        busiest = page.get_by_role("row").nth(1)
        busiest.get_by_text(re.compile("efficientnet|image_preprocess")).wait_for()


def test_trace_of_an_ensemble_has_its_steps(browser: Any, console: str) -> None:
    with opened(browser, f"{console}#/traces") as page:
        page.locator("tbody th a").first.click()
        drawn = page.get_by_role("img", name="Spans of the trace")
        drawn.wait_for()
        told = drawn.get_attribute("aria-label") or ""
        assert f"{ENSEMBLE} 1: " in told and "image_preprocess 1: " in told


def test_server_page_has_charts_of_the_traffic(browser: Any, console: str) -> None:
    with opened(browser, f"{console}#/server") as page:
        page.get_by_role("img", name="Requests. all: last").wait_for()
        page.get_by_text("--http-port", exact=True).first.wait_for(state="attached")
