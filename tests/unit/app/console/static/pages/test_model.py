"""The page of a model: its state with what to do about it, its tensors, figures and configuration."""

from typing import Any

import pytest

from tests.browser import SIZES, opened
from tests.unit.app.console.static.pages.tried import HOSTILE, Tried


def test_failed_model_tells_why_and_what_to_do(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/model/broken", refused=True) as page:
        reason = page.locator(".note.bad").first
        reason.wait_for()
        assert f"No module named 'missing' {HOSTILE}" in reason.inner_text()
        assert "requirements.txt" in page.locator(".remedy").inner_text()
        assert page.locator("main img, main script").count() == 0


def test_model_shows_tensors_figures_and_configuration(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/model/picture_file") as page:
        outputs = page.locator("section", has=page.get_by_role("heading", name="Outputs"))
        outputs.get_by_text("labels: labels.txt").wait_for()
        assert outputs.locator("th").all_text_contents() == ["scores", "size", "again"]
        config = page.locator(".copyable pre").inner_text()
        assert 'label_filename: "labels.txt"' in config and "max_batch_size: 4" in config
        assert page.get_by_role("img", name="Duration").count() == 1
        page.get_by_role("link", name="Try it").click()
        page.get_by_role("button", name="Send").wait_for()


def test_model_is_unloaded_after_a_question_and_loaded_again(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/model/doubles") as page:
        page.get_by_role("button", name="Unload").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert tried.server.model_ready("doubles")
        page.get_by_role("button", name="Load again").click()
        page.get_by_text("doubles is loaded").wait_for()


def test_model_and_picture_are_found_by_keyboard_alone(browser: Any, tried: Tried) -> None:
    cat = pytest.importorskip("pathlib").Path("tests/data/cat.jpg").resolve()
    with opened(browser, tried.url, refused=True) as page:
        page.get_by_text("broken").first.wait_for()
        tabbed(page, "broken")
        page.keyboard.press("Enter")
        page.get_by_text("No module named 'missing'").first.wait_for()
        page.goto(f"{tried.url}#/try/picture_file")
        page.get_by_label("Picture", exact=True).wait_for()
        page.get_by_label("Picture", exact=True).focus()
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Space")
        chooser.value.set_files(cat)
        tabbed(page, "Send")
        page.keyboard.press("Enter")
        page.get_by_role("region", name="Answer").get_by_text("from here to the answer").wait_for()


def tabbed(page: Any, text: str) -> None:
    """Press Tab until what has the focus says so."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if text in page.evaluate("document.activeElement.textContent"):
            return
    raise AssertionError(f"Tab does not lead to {text}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page_of", ["model/broken", "model/picture_file", "graph/sometimes"])
def test_page_fits_and_has_contrast(browser: Any, tried: Tried, page_of: str, size: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    url = f"{tried.url}#/{page_of}"
    with opened(browser, url, size, scheme, refused=True, bypass_csp=True) as page:
        page.locator(".badge").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
