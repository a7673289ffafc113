"""The page at `/` as a browser shows it: large and small, light and dark, by keyboard, to axe-core."""

from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.routing.table import ModelState, VersionEntry
from tests.browser import SIZES, chromium, opened
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.running_fronts import Fronts

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
REASON = f"Internal: No module named 'missing' {HOSTILE} " + "/a/very/long/path" * 20


class Models(FakeService):
    """So many models: some ready, some that failed, one with a hostile name."""

    count = 500

    def served(self) -> list[VersionEntry]:
        config = mc.ModelConfig(backend="onnxruntime", max_batch_size=8)
        config.input.add(name="INPUT0", data_type="TYPE_FP32", dims=[3, 224, 224])
        config.output.add(name="a_long_name_of_an_output_" * 3, data_type="TYPE_FP32", dims=[1000])
        written = config.SerializeToString()
        return [VersionEntry(f"model{n:03}", 1, ModelState.READY, config=written) for n in range(self.count)]

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        found = pb.RepositoryIndexResponse()
        for number in range(self.count):
            found.models.add(name=f"model{number:03}", version="1", state="READY")
        found.models.add(name=HOSTILE, version="1", state="UNAVAILABLE", reason=REASON)
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(fronts: Fronts) -> Iterator[str]:
    with fronts(service=Models()) as running:
        yield f"http://{running.http}/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_page_fits_and_has_contrast(browser: Any, url: str, size: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    Models.count = 20  # axe looks at each element
    try:
        # Its script is not the page's: a policy without scripts keeps it out, too.
        with opened(browser, url, size, scheme, bypass_csp=True) as page:
            page.get_by_text("model003", exact=True).click()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= SIZES[size][0]
            found = axe.Axe().run(page).response["violations"]
            assert [(each["id"], each["impact"]) for each in found] == []
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(13, 20, 24)") == (scheme == "dark")
    finally:
        Models.count = 500


def test_hostile_text_is_shown_as_it_is(browser: Any, url: str) -> None:
    with opened(browser, url) as page:
        assert page.locator("summary b").first.text_content() == HOSTILE
        assert page.locator("img, script").count() == 0
        assert "No module named 'missing'" in page.locator(".why").first.inner_text()
        assert page.get_by_text("requirements.txt").first.is_visible()


def test_model_is_found_and_opened_by_keyboard_alone(browser: Any, url: str) -> None:
    with opened(browser, url) as page:
        last = page.locator("details").last
        assert page.locator("details").count() == 500 and last.get_attribute("open") is None
        for _ in range(40):  # past the links, to the first model that is ready
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent").startswith("model000"):
                break
        page.keyboard.press("Enter")
        command = page.locator("details", has_text="model000").locator("pre")
        assert command.is_visible() and "/v2/models/model000/infer" in command.inner_text()


def test_click_selects_the_whole_command(browser: Any, url: str) -> None:
    with opened(browser, url) as page:
        page.get_by_text("model000", exact=True).click()
        command = page.locator("details", has_text="model000").locator("pre")
        command.click()
        assert page.evaluate("getSelection().toString()").strip() == command.inner_text().strip()
