"""An ensemble as a drawing, and as a table of the same."""

from typing import Any

from tests.browser import opened
from tests.unit.app.console.static.pages.tried import Tried


def test_steps_stand_right_of_what_they_read(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/graph/sometimes") as page:
        drawing = page.get_by_role("region", name="Drawing")
        drawing.wait_for()
        boxes = drawing.locator("rect.step").all()
        asks, first, second = (each.bounding_box() for each in boxes)
        assert asks["x"] == first["x"] and first["x"] + first["width"] < second["x"]
        assert drawing.get_by_text("only if good").count() == 2  # the word, and the title of its edge
        drawing.locator("circle.good").first.wait_for()
        assert drawing.locator("circle.good").count() == 3


def test_table_says_the_same(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/graph/sometimes") as page:
        rows = page.get_by_role("region", name="Steps").locator("tbody tr")
        rows.first.wait_for()
        assert rows.locator("th").all_text_contents() == ["1. asks", "2. doubles", "3. doubles"]
        last = rows.last.locator("td").all_text_contents()
        assert last[1:3] == ["double of doubles", "only if good"]
        rows.last.get_by_role("link").click()
        page.get_by_role("heading", level=1, name="doubles").wait_for()


def test_step_leads_to_its_model_by_keyboard(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/graph/sometimes") as page:
        step = page.get_by_role("region", name="Drawing").locator("a").first
        step.wait_for()
        step.focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="asks").wait_for()


def test_model_without_steps_is_no_ensemble(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/graph/doubles") as page:
        page.get_by_text("doubles is no ensemble").wait_for()
