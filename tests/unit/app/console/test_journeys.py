"""What operators do, by keyboard alone and against a server of its own process, killed at the end."""

import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from app.console.server import Console, Place
from app.console.upstream import Upstream
from app.transport.loops.thread import LoopThread
from tests.browser import opened, press
from tests.server import ROOT, EngineServer, Server

PICTURE = ROOT / "tests" / "data" / "cat.jpg"
MEAN = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        means = [pb_utils.get_input_tensor_by_name(each, "image").as_numpy().mean() for each in requests]
        made = [pb_utils.Tensor("mean", np.array([mean], np.float32)) for mean in means]
        return [pb_utils.InferenceResponse(output_tensors=[each]) for each in made]
"""
CONFIG = """
backend: "python"
input [ { name: "image" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 32, 32, 3 ] } ]
output [ { name: "mean" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
OCR = ROOT / "model_repository" / "rapidocr_det"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model of pictures, one that cannot be loaded, and one that finds text, in a server with a tape."""
    folder = tmp_path_factory.mktemp("journeys")
    for name, code in (("pictures", MEAN), ("broken", "import missing_package\n" + MEAN)):
        made = folder / "models" / name / "1"
        made.mkdir(parents=True)
        (made / "model.py").write_text(code)
        (made.parent / "config.pbtxt").write_text(CONFIG)
    if (OCR / "1" / "model.onnx").exists():
        shutil.copytree(OCR, folder / "models" / OCR.name)
    flags = [f"--model-repository={folder / 'models'}", "--load-model=*", "--exit-on-error=false"]
    flags += ["--strict-readiness=false", f"--tape={folder / 'tape'}", "--tape-rate=1"]
    running = EngineServer(flags, folder / "log", mode="explicit").start()
    yield running
    running.stop()


@pytest.fixture
def console(server: Server) -> Iterator[str]:
    loop = LoopThread("console")
    made = Console(Upstream(f"http://{server.http_url}"), Place(port=0))
    yield f"http://127.0.0.1:{loop.call(made.start())}/"
    loop.call(made.stop())
    loop.stop()


@pytest.fixture
def page(browser: Any, console: str) -> Iterator[Any]:
    with opened(browser, console, refused=True, bypass_csp=True) as found:
        yield found


def check(page: Any) -> None:
    """Compare a page with the rules of axe-core, if that is installed."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        return
    found = Axe().run(page).response["violations"]
    assert [(page.url, each["id"], each["nodes"][0]["html"]) for each in found] == []


def choose_picture(page: Any) -> None:
    with page.expect_file_chooser() as chooser:
        press(page, page.locator("input[type=file]"))
    chooser.value.set_files(PICTURE)
    page.get_by_text("cat.jpg").wait_for()


def test_failed_model_is_found_and_a_load_that_fails_is_an_alert(page: Any) -> None:
    check(page)
    press(page, page.get_by_role("region", name="Models that do not work").get_by_role("link"))
    page.get_by_text("No module named 'missing_package'").first.wait_for()
    check(page)
    press(page, page.get_by_role("button", name="Load again"))
    page.locator("#notices").get_by_text("missing_package").wait_for()
    press(page, page.get_by_role("link", name="Models", exact=True))
    alert = page.get_by_role("region", name="Alerts").get_by_role("link", name="broken: a load failed")
    alert.wait_for(timeout=60_000)
    check(page)
    press(page, alert)
    page.get_by_role("heading", name="Log", exact=True).wait_for()


def test_picture_is_tried_and_its_request_sent_again(page: Any) -> None:
    press(page, page.get_by_role("link", name="pictures 1"))
    press(page, page.get_by_role("link", name="Try it"))
    choose_picture(page)
    press(page, page.get_by_role("button", name="Send", exact=True))
    page.get_by_role("region", name="Answer").get_by_text("mean").first.wait_for()
    check(page)
    press(page, page.get_by_role("link", name="Tape", exact=True).first)
    press(page, page.locator("main").get_by_role("link", name="pictures"))
    press(page, page.locator("tbody tr").first)
    press(page, page.get_by_role("button", name="Send again"))
    page.get_by_text("Both answers are the same").wait_for()
    check(page)


def test_configuration_is_applied(page: Any, server: Server) -> None:
    press(page, page.get_by_role("link", name="pictures 1"))
    press(page, page.get_by_role("link", name="Configuration"))
    press(page, page.get_by_label("config.pbtxt"), "Control+End")
    page.keyboard.type('\nparameters { key: "mood" value { string_value: "good" } }')
    page.get_by_text('+  key: "mood"').wait_for()
    press(page, page.get_by_role("button", name="Load with this…"))
    press(page, page.get_by_role("dialog").get_by_role("button", name="Load"))
    page.get_by_text("is loaded with this configuration").wait_for()
    status, config = server.get("/v2/models/pictures/config")
    assert status == 200 and b'"mood"' in config
    check(page)


@pytest.mark.skipif(not (OCR / "1" / "model.onnx").exists(), reason="make models fetches the weights")
def test_text_is_found_in_a_picture_of_any_size(page: Any) -> None:
    press(page, page.get_by_role("link", name="rapidocr_det 1"))
    press(page, page.get_by_role("link", name="Try it"))
    choose_picture(page)
    press(page, page.get_by_role("button", name="Send", exact=True))
    answer = page.get_by_role("region", name="Answer")
    answer.get_by_text("from here to the answer").wait_for(timeout=60_000)
    assert "fetch_name_0" in answer.inner_text()
    check(page)


def test_page_outlives_its_server(page: Any, server: Server) -> None:
    page.locator("#server.good").wait_for()
    server.stop(signal.SIGKILL)
    page.locator("#server.bad").get_by_text("does not answer").wait_for()
    server.start()
    page.locator("#server").get_by_text("Ready · ").wait_for(timeout=60_000)
