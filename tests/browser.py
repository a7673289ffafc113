"""A headless Chromium of the system, driven by Playwright, for tests of pages; they skip without."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
_REFUSED = "Failed to load resource: the server responded with a status of "
SIZES = {"desk": (1440, 900), "phone": (390, 844)}
_PICTURE = {"picture": (1320, 825)}
_MOST_TABS = 150


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser of Playwright's."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    if not CHROMIUM:
        pytest.skip("there is no Chromium (Debian's package chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Any, url: str, size: str = "desk", scheme: str = "light", refused: bool = False, **options: Any
) -> Iterator[Any]:
    """Yield a page that has loaded; fail if its console has an error or a report of its policy.

    Args:
        size: one of `SIZES`, or "picture" for one of the manual's.
        scheme: "light" or "dark".
        refused: the server refuses a request of the page, which a browser tells by itself.
        options: of the context.
    """
    width, height = (SIZES | _PICTURE)[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
    page, told = context.new_page(), []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: told.append(dialog.message))
    page.goto(url)
    yield page
    context.close()
    assert [text for text in told if not (refused and text.startswith(_REFUSED))] == []


def press(page: Any, target: Any, key: str = "Enter") -> None:
    """Go to an element by the tabulator alone, and press a key there.

    Raises:
        AssertionError: no tabulator leads to it.
    """
    target.wait_for()
    for _ in range(_MOST_TABS):
        page.keyboard.press("Tab")
        if target.evaluate("node => node === document.activeElement"):
            page.keyboard.press(key)
            return
    raise AssertionError(f"{target} cannot be reached by the keyboard")
