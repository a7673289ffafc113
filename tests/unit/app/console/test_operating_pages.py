"""Pages of rollouts, tapes, drift and configurations as a browser shows them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from tests.browser import SIZES, opened
from tests.unit.app.console.conftest import Consoles
from tests.unit.app.console.operated import HOSTILE, Operated
from tests.unit.app.console.running_console import RunningConsole, guard_of_tokens
from tests.unit.client.tape.made import row, write

PAGES = (
    "rollout",
    "rollout/identity",
    "tape",
    "tape/identity",
    "tape/identity/ab-1",
    "drift/identity",
    "config/identity",
    "cost",
)


def tensor(name: str, *values: float) -> TapeTensor:
    data = np.array(values, "<f4").tobytes()
    return TapeTensor(name, "FP32", (1, len(values)), data, len(data))


def recorded(number: int, *answer: float, **changed: Any) -> Row:
    fields: dict[str, Any] = {
        "model": "identity",
        "version": "1",
        "id": f"order-{number}",
        "inputs": (tensor("INPUT0", 1, 2.5),),
        "responses": (TapeResponse(2_000_000, (tensor("OUTPUT0", *answer),), final=True),),
    }
    return row(number, 1.7e9 + number, **fields | changed)


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """A tape of rows that can be sent again, one that cannot, and one that failed, in hostile words."""
    text = TapeTensor("INPUT0", "BYTES", (1,), b"", 90, "size")
    failed = (TapeResponse(1_000_000, (), "INTERNAL", HOSTILE, True),)
    rows = [
        recorded(1, 1, 2.5),
        recorded(2, 1, 9.5),
        recorded(3, 1, inputs=(text,), flags=("redacted",)),
        recorded(4, 1, id=HOSTILE, responses=failed),
    ]
    write(tmp_path / "tape" / "ab-000001.open", rows)
    return tmp_path / "tape"


@pytest.fixture
def running(consoles: Consoles, tape: Path) -> Iterator[RunningConsole]:
    with consoles(service=Operated(tape)) as console:
        yield console


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_fit_and_have_contrast(running: RunningConsole, browser: Any, size: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    for path in PAGES:
        url = f"{running.url}#/{path}"
        with opened(browser, url, size, scheme, bypass_csp=True) as page:
            page.wait_for_load_state("networkidle")
            page.locator("main table, main dl, main textarea").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], path
            found = axe.Axe().run(page).response["violations"]
            assert [(path, each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
            assert page.locator("main img, main script").count() == 0


def test_rollout_shows_evidence_and_is_aborted_by_keyboard(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/rollout/identity") as page:
        page.get_by_role("table", name="Evidence").get_by_text("alarm", exact=True).wait_for()
        assert f"7 times: the model raised {HOSTILE}" in page.inner_text("main")
        assert page.get_by_role("progressbar").get_attribute("max") == "100"
        _to(page, "Abort…")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Abort the rollout")
        dialog.get_by_label("Why").fill(HOSTILE)
        page.keyboard.press("Enter")
        page.get_by_text("aborted").first.wait_for()
        (name, change, _) = running.service.changed[-1]
        assert (name, change.action, change.why) == ("identity", "abort", HOSTILE)
        page.get_by_role("button", name="Start a rollout…").wait_for()


def test_rollout_is_started_with_what_was_filled_in(running: RunningConsole, browser: Any) -> None:
    running.service.status = None
    with opened(browser, f"{running.url}#/rollout/identity") as page:
        page.get_by_text("has had no rollout").wait_for()
        page.get_by_role("button", name="Start a rollout…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Candidate").fill("2")
        dialog.get_by_label("Percent").fill("5")
        dialog.get_by_role("button", name="Start a rollout").click()
        page.get_by_text("loading").first.wait_for()
        change = running.service.changed[-1][1]
        assert (change.action, change.candidate, change.weight) == ("start", 2, 5.0)
        page.get_by_role("button", name="Set weight…").click()
        page.keyboard.press("Escape")
        assert len(running.service.changed) == 1


def test_requests_are_found_by_conditions(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/tape") as page:
        page.get_by_role("link", name="identity").click()
        page.get_by_text("4 found, 4 looked at, which are all").wait_for()
        page.get_by_label("Conditions").fill("failed")
        page.keyboard.press("Enter")
        page.get_by_text("1 found").wait_for()
        assert page.get_by_role("row", name=HOSTILE[:20]).count() == 1


def test_condition_that_cannot_be_read_is_told(running: RunningConsole, browser: Any) -> None:
    context = browser.new_context()  # whose browser notes the refusal as an error
    page = context.new_page()
    page.goto(f"{running.url}#/tape/identity")
    page.get_by_label("Conditions").fill("nonsense=1")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("nonsense").wait_for()
    context.close()


def test_request_is_sent_again_and_compared(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/tape/identity/ab-1") as page:
        _to(page, "Send again")
        page.keyboard.press("Enter")
        page.get_by_text("Both answers are the same").wait_for()
        assert page.get_by_text("Now, version 1").count() == 1
    with opened(browser, f"{running.url}#/tape/identity/ab-2") as page:
        page.get_by_role("button", name="Send again").click()
        differences = page.get_by_role("table", name="Differences by output")
        differences.wait_for()
        cells = differences.get_by_role("row", name="OUTPUT0").inner_text()
        assert "7" in cells and "50 %" in cells, cells


def test_row_without_its_values_says_so(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/tape/identity/ab-3") as page:
        page.get_by_text("only its size was recorded").wait_for()
        assert page.get_by_role("button", name="Send again").count() == 0
        assert "input 'INPUT0' was not kept (size)" in page.inner_text("main")
        answer = running.ask("POST", "/v2/models/identity/tape/ab-3/replay", b"{}")
        assert answer.status == 400 and "was not kept" in answer.json["error"]


def test_drift_shows_both_distributions(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/drift/identity") as page:
        page.get_by_text("Requests have changed since").wait_for()
        page.get_by_text("an alarm from evidence 1,000 on").wait_for()
        chart = page.get_by_role("img", name=f"Shares of {HOSTILE}")
        assert "reference: last" in chart.get_attribute("aria-label")
        assert page.locator("rect.bar.s1").count() > 10
    with opened(browser, f"{running.url}#/drift/other") as page:
        page.get_by_text("nereid drift reference other --from PATH").wait_for()


def test_configuration_is_checked_compared_and_loaded(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/config/identity") as page:
        text = page.get_by_label("config.pbtxt")
        served = text.input_value()
        assert "max_batch_size: 8" in served
        text.fill(served.replace("max_batch_size: 8", "max_batch_size: 16"))
        page.get_by_text("+max_batch_size: 16").wait_for()
        text.fill(f"{served}\nmax_batchsize: 3")
        page.get_by_role("alert").get_by_text("Did you mean 'max_batch_size'?").wait_for()
        assert page.get_by_role("button", name="Load with this…").is_disabled()
        page.get_by_role("button", name="Go there").click()
        line = served.count("\n") + 2
        said = page.get_by_role("alert").inner_text()
        assert said.startswith(f"Line {line}, column 1:"), said
        text.fill(served.replace("max_batch_size: 8", "max_batch_size: 4"))
        page.get_by_text("+max_batch_size: 4").wait_for()
        page.get_by_role("button", name="Load with this…").click()
        page.get_by_role("dialog").get_by_role("button", name="Load").click()
        page.get_by_text("is loaded with this configuration").wait_for()
        (name, config, files) = running.service.loaded[-1]
        assert (name, json.loads(config)["max_batch_size"], files) == ("identity", 4, {})


def test_bill_is_by_what_was_chosen(running: RunningConsole, browser: Any) -> None:
    with opened(browser, f"{running.url}#/cost") as page:
        table = page.get_by_role("table", name="Lines of the bill")
        table.get_by_text(f"{HOSTILE} · identity").wait_for()
        row = table.get_by_role("row", name=HOSTILE[:10])
        assert "0.04" in row.inner_text() and "18,000" in row.inner_text()
        page.get_by_label("By", exact=True).select_option("model")
        page.get_by_role("button", name="Show").click()
        table.get_by_role("row", name="ingress").wait_for()
        assert running.ask("GET", "/v2/nereid/cost?by=secret").status == 400
        assert running.ask("GET", "/v2/nereid/cost?since=soon").status == 400


ACTIONS: tuple[tuple[str, str, dict[str, str] | None], ...] = (
    ("POST", "/v2/repository/models/identity/rollout", {"action": "abort"}),
    ("POST", "/v2/models/identity/tape/ab-1/replay", {}),
    ("POST", "/v2/repository/models/identity/load", {}),
    ("GET", "/v2/nereid/tape", None),
    ("GET", "/v2/nereid/cost", None),
    ("GET", "/v2/models/identity/tape", None),
    ("GET", "/v2/models/identity/tape/ab-1", None),
)


def test_what_pages_do_needs_a_token_with_the_scope(consoles: Consoles, tape: Path) -> None:
    with consoles(service=Operated(tape), guard=guard_of_tokens()) as console:
        for method, path, fields in ACTIONS:
            body = None if fields is None else json.dumps(fields).encode()
            assert console.ask(method, path, body).status == 401, path
            assert console.ask(method, path, body, Authorization="Bearer web").status == 403, path
            assert console.ask(method, path, body, Authorization="Bearer ops").status == 200, path
            refused = console.ask(
                method, path, body, Authorization="Bearer ops", Origin="http://evil.example"
            )
            assert refused.status == 403, path
        assert console.service.changed[-1][2] == "ops"


def _to(page: Any, name: str) -> None:
    """Go to a button by the keyboard alone."""
    page.get_by_role("button", name=name).wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    pytest.fail(f"no Tab leads to '{name}'")
