"""Writes the manual's pictures of the console, of a server with some example models under a little load.

    python -m tests.pictures docs/operate [--dev] [--only NAME ...]

Needs the extras `test` and `browser`, and a Chromium. A page that reports an error fails.
With --dev the server is one process without Ray, which has no rollouts; the other pictures are the same.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.http as triton

from tests.browser import chromium, opened
from tests.server import ROOT, START_S, EngineServer, Server, free_port, wait_until

MAX_BYTES: Final = 80_000
_MODELS: Final = (
    "efficientnet_ensemble",
    "efficientnet_lite0_onnx",
    "image_preprocess",
    "language",
    "simple",
    "simple_sequence",
    "wine_forest",
)
_BROKEN: Final = "import soundfile  # is not installed: the overview is to show a model that failed\n"
_WINE: Final = np.array([13.0, 2.3, 2.36, 19.5, 99.7, 2.29, 2.03, 0.36, 1.59, 5.05, 0.957, 2.61, 746.0])
_SPREAD: Final = np.array([0.81, 1.1, 0.27, 3.3, 14.0, 0.62, 1.0, 0.12, 0.57, 2.3, 0.23, 0.71, 315.0])
_PICTURES: Final = ("cat.jpg", "coffee.jpg", "astronaut.jpg")
_RAMP_S: Final = 45.0
"""Seconds of load before the first picture, so that charts and drift have something to show."""


def wines(rows: int, seed: int, magnesium: float = 0.0) -> np.ndarray[Any, Any]:
    """Return made up measurements, float32 of shape [rows, 13], with another mean of one of them."""
    made = np.random.default_rng(seed).normal(_WINE, _SPREAD, (rows, 13))
    made[:, 4] += magnesium
    return made.astype(np.float32)


def repository(folder: Path) -> Path:
    """Make a model repository: examples, one of which has a reference for drift, and a model that fails."""
    models = folder / "models"
    for name in _MODELS:
        shutil.copytree(ROOT / "model_repository" / name, models / name)
    (models / "speech" / "1").mkdir(parents=True)
    (models / "speech" / "1" / "model.py").write_text(_BROKEN)
    (models / "wine_forest" / "rollout.yaml").write_text("steps: [5, 25]\ntape: null\n")
    np.savez(folder / "train.npz", input__0=wines(12_000, 0))
    command = [sys.executable, "-m", "nereid", "drift", "reference", "wine_forest"]
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = ["--from", "train.npz", "--repository", "models"]
    subprocess.run([*command, *given], cwd=folder, env=paths, check=True)
    return models


@contextmanager
def load(address: str) -> Iterator[None]:
    """Send requests to several models, some dozens a second, until the block ends."""
    done = threading.Event()

    def send(pause: float, ask: Callable[[Any, int], object]) -> None:
        with triton.InferenceServerClient(address) as client:
            for number in range(1_000_000):
                if done.wait(pause):
                    return
                ask(client, number)

    asked = [(0.3, _picture), (0.02, _wine), (0.03, _sum)]
    threads = [threading.Thread(target=send, args=each) for each in asked]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _picture(client: Any, number: int) -> None:
    image = triton.InferInput("image", [1, 1], "BYTES")
    content = (ROOT / "tests" / "data" / _PICTURES[number % len(_PICTURES)]).read_bytes()
    image.set_data_from_numpy(np.array([[content]], np.object_))
    client.infer("efficientnet_ensemble", [image], request_id=f"picture-{number}")


def _wine(client: Any, number: int) -> None:
    rows = triton.InferInput("input__0", [8, 13], "FP32")
    rows.set_data_from_numpy(wines(8, number + 1, magnesium=12.0))
    client.infer("wine_forest", [rows], request_id=f"wine-{number}")


def _sum(client: Any, number: int) -> None:
    both = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in both:
        each.set_data_from_numpy(np.full((1, 16), number % 100, np.int32))
    client.infer("simple", both)


def _try(page: Any) -> None:
    page.get_by_label("Picture", exact=True).set_input_files(ROOT / "tests" / "data" / "cat.jpg")
    page.get_by_label("probabilities").select_option("3")
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_text("from here to the answer").wait_for()


def _row(page: Any) -> None:
    page.locator("tbody tr").first.click()
    page.locator("main dl").first.wait_for()
    page.wait_for_timeout(1000)


def _ensemble(page: Any) -> None:
    page.get_by_role("row", name="efficientnet_ensemble").first.click()
    page.get_by_role("img", name="Spans of the trace").wait_for()
    page.wait_for_timeout(1000)


def _cost(page: Any) -> None:
    for _ in range(90):  # the ledger is written once a minute
        if page.get_by_role("heading", name="All lines").count():
            return
        page.get_by_role("button", name="Show").click()
        page.wait_for_timeout(1000)


def _waited(page: Any) -> None:
    page.wait_for_timeout(5000)


PAGES: Final[dict[str, tuple[str, Callable[[Any], None]]]] = {
    "models": ("", _waited),
    "model": ("model/efficientnet_ensemble", _waited),
    "try": ("try/efficientnet_ensemble", _try),
    "graph": ("graph/efficientnet_ensemble", _waited),
    "tape": ("tape/wine_forest", _waited),
    "tape_row": ("tape/wine_forest", _row),
    "drift": ("drift/wine_forest", _waited),
    "config": ("config/simple", _waited),
    "logs": ("logs", _waited),
    "trace": ("traces", _ensemble),
    "server": ("server", _waited),
    "cost": ("cost", _cost),
    "rollout": ("rollout/wine_forest", _waited),
}
"""Pages by the name of their picture, with what is done there before it is taken."""


def written(page: Any, path: Path) -> None:
    """Write what a page shows, without what is empty below it, in 64 colours.

    Raises:
        ValueError: the file is too large for the manual.
    """
    from PIL import Image

    end = page.evaluate("document.querySelector('main').lastElementChild.getBoundingClientRect().bottom")
    with Image.open(io.BytesIO(page.screenshot())) as shown:
        used = shown.crop((0, 0, shown.width, min(shown.height, int(end) + 24)))
        few = used.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes")
    print(f"{path.stat().st_size:>7,}  {path}", flush=True)


def take(target: Path, names: list[str], dev: bool) -> None:
    """Start a server, and write the named pictures."""
    port = free_port()
    with tempfile.TemporaryDirectory() as work, chromium() as browser:
        models = repository(Path(work))
        flags = [
            f"--model-repository={models}",
            "--exit-on-error=false",
            "--strict-readiness=false",
            "--log-info=true",
            f"--tape={work}/tape",
        ]
        flags += [f"--cost-directory={work}/cost", "--tape-rate=1"]
        flags += ["--allow-console=true", f"--console-port={port}"]
        if dev:
            server: Server = EngineServer(flags, Path(work) / "log")
        else:
            polling = ["--model-control-mode=poll", "--repository-poll-secs=2"]
            server = Server([*flags, *polling], Path(work) / "log")
        server.start(wait=False)  # with a model that failed it never is ready
        try:
            wait_until(lambda: all(map(server.model_ready, _MODELS)), START_S, "the models are loaded")
            wait_until(lambda: server.get("/", port=port)[0] == 200, START_S, "the console answers")
            with load(server.http_url), opened(browser, f"http://127.0.0.1:{port}/"):
                if "rollout" in names:
                    shutil.copytree(models / "wine_forest" / "1", models / "wine_forest" / "2")
                time.sleep(_RAMP_S)
                for name in names:
                    path, act = PAGES[name]
                    with opened(browser, f"http://127.0.0.1:{port}/#/{path}", "picture") as page:
                        act(page)
                        written(page, target / f"console_{name}.png")
        finally:
            server.stop()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pictures")
    parser.add_argument("target", type=Path, metavar="DIRECTORY")
    parser.add_argument("--dev", action="store_true", help="without Ray, and without rollouts")
    parser.add_argument("--only", nargs="+", choices=PAGES, default=list(PAGES), metavar="NAME")
    asked = parser.parse_args()
    take(asked.target, [name for name in asked.only if not (asked.dev and name == "rollout")], asked.dev)


if __name__ == "__main__":
    _main()
