"""Takes one model once around: recorded, made cheaper, rolled out by what was recorded, watched.

A server on Ray answers pictures all the while. Their requests are recorded, and a reference of them is
written; `nereid optimise --write` finds a cheaper version on them; that version answers the tape, then a
rising share of the requests, and takes over; its saving is told. Then the pictures change, which drift has to
notice, and a version that is wrong has to be refused by the tape. Ends with 1 if a step did not come, or a
single request failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from app.core.rollout.saving import MIN_MINUTES
from nereid_client import Server as Client
from tests.long.rollout_bench import OVER, ask, call, change
from tests.long.server import say
from tests.server import ROOT, Server, wait_until

MODEL: Final = "efficientnet_lite0_onnx"
_SIDE: Final = 224
_LIMIT_S: Final = 45 * 60.0
_CHEAPER: Final = 2
"""The version that `optimise` writes, beside version 1."""
_POLICY: Final = {"steps": [10, 50], "step": {"min_seconds": 20, "min_requests": 100, "max_seconds": 600}}


class Pictures:
    """Crops of a few photographs, each another one, as the model wants them.

    Attributes:
        dark: whether they come from another camera from now on.
    """

    def __init__(self, seed: int) -> None:
        self.dark = False
        self._draw = np.random.default_rng(seed)
        self._photographs = [
            Image.open(path).convert("RGB") for path in sorted((ROOT / "tests/data").glob("*.jpg"))
        ]

    def next(self) -> NDArray[np.float32]:
        """Return a picture of shape (1, 3, 224, 224)."""
        draw = self._draw
        picture = self._photographs[draw.integers(len(self._photographs))]
        side = int(min(picture.size) * draw.uniform(0.55, 1.0))
        left, top = (int(draw.integers(length - side + 1)) for length in picture.size)
        picture = picture.crop((left, top, left + side, top + side)).resize((_SIDE, _SIDE))
        picture = ImageEnhance.Brightness(picture).enhance(
            draw.uniform(0.9, 1.1) * (0.6 if self.dark else 1.0)
        )
        rows = (np.asarray(picture, np.float32) - 127) / 128
        return np.ascontiguousarray(rows.transpose(2, 0, 1)[None])


class Requests:
    """Requests at a steady rate, from a few threads, until told to end.

    Attributes:
        answered: how many each version has answered.
        failed: what went wrong, with the time.
    """

    def __init__(self, url: str, rate: float, threads: int = 3) -> None:
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []
        self._url, self._pause = url, threads / rate
        self._over = threading.Event()
        self.pictures = [Pictures(seed) for seed in range(threads)]
        self._threads = [threading.Thread(target=self._send, args=(each,)) for each in self.pictures]

    def _send(self, pictures: Pictures) -> None:
        with Client(f"http://{self._url}") as client:
            model = client.model(MODEL)
            due = time.monotonic()
            while not self._over.is_set():
                try:
                    self.answered[model(input=pictures.next()).version] += 1
                except Exception as error:  # whatever a client would see
                    self.failed.append(f"{time.strftime('%X')} {error!r}")
                due += self._pause
                self._over.wait(max(due - time.monotonic(), 0))

    @contextmanager
    def running(self) -> Iterator["Requests"]:
        """Send until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()


class Loop:
    """The steps, in their order; each raises AssertionError if what it is for does not come."""

    def __init__(self, server: Server, models: Path, tape: Path, requests: Requests) -> None:
        self._server, self._models, self._tape, self._requests = server, models, tape, requests

    def record(self, rows: int) -> None:
        """Wait for so many rows on the tape."""
        wait_until(lambda: sum(self._requests.answered.values()) >= rows, 1200, f"{rows} rows")

    def reference(self) -> None:
        """Write what requests look like, and see the server use it."""
        self._command(
            "drift", "reference", MODEL, "--from", str(self._tape), "--repository", str(self._models)
        )
        wait_until(lambda: call(self._server, f"models/{MODEL}/drift")[0] == 200, 60, "drift is watched")

    def optimise(self) -> None:
        """Find a cheaper version on the tape, and write it with a rollout."""
        rules = self._tape.parent / "rules.yaml"
        rules.write_text('margin: 0.05\noutputs: {"*": argmax}\n')
        arguments = ("--tape", str(self._tape), "--keep", "agreement>=0.99", "--rules", str(rules))
        places = ("--repository", str(self._models), "--output", str(self._tape.parent / "optimise"))
        self._command("optimise", MODEL, *arguments, *places, "--write")

    def steady(self, begun: float) -> None:
        """Wait until the present version has as many minutes as the saving is compared with."""
        time.sleep(max(begun + 60 * (MIN_MINUTES + 1.5) - time.monotonic(), 0))

    def roll_out(self, version: int) -> dict[str, Any]:
        """Have a version take over as `rollout.yaml` says; return the status at the end."""
        status = self._rolled_out(1200)
        assert status["state"] == "done" and status["candidate"] == version, status
        return status

    def saving(self) -> dict[str, Any]:
        """Wait until the rollout tells what it saved."""
        wait_until(lambda: bool((self._rollout().get("saving") or {}).get("share")), 1500, "a saving is told")
        return dict(self._rollout()["saving"])

    def drift(self) -> float:
        """Change the pictures; return the seconds until an alarm."""
        assert not self._drift().get("since"), self._drift()
        for pictures in self._requests.pictures:
            pictures.dark = True
        seconds = wait_until(lambda: bool(self._drift().get("since")), 600, "drift is noticed")
        for pictures in self._requests.pictures:
            pictures.dark = False
        return seconds

    def refuse(self, good: int, bad: int) -> str:
        """Write a version that takes classes for others, and see the tape refuse it; return the reason."""
        write_wrong(self._models / MODEL, good, bad)
        status = self._rolled_out(600)
        assert status["state"] == "failed", status
        assert not self._requests.answered[str(bad)], "it has answered requests of clients"
        return str(status["reason"])

    def _rolled_out(self, seconds: float) -> dict[str, Any]:
        """Roll the newest version out by what `optimise` has written; return the status at the end."""
        written = yaml.safe_load((self._models / MODEL / "rollout.yaml").read_text()) or {}
        change(self._server, MODEL, "start", spec={**written, **_POLICY})
        wait_until(lambda: self._rollout()["state"] in OVER, seconds, "an end")
        return self._rollout()

    def _rollout(self) -> dict[str, Any]:
        return ask(self._server, f"models/{MODEL}/rollout")

    def _drift(self) -> dict[str, Any]:
        return ask(self._server, f"models/{MODEL}/drift")

    def _command(self, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "nereid", *arguments], cwd=ROOT, check=True, timeout=_LIMIT_S)


def write_wrong(model: Path, good: int, bad: int) -> None:
    """Write a version of which half of the classes have changed places."""
    import onnx
    from onnx import numpy_helper

    shutil.copytree(model / str(good), model / str(bad))
    network = onnx.load(str(model / str(bad) / "model.onnx"))
    last = [node for node in network.graph.node if node.op_type in ("Gemm", "MatMul")][-1]
    weights = next(each for each in network.graph.initializer if each.name == last.input[1])
    values = numpy_helper.to_array(weights)
    axis = list(values.shape).index(1000)
    order = np.arange(1000)
    order[500:] = np.roll(order[500:], 1)
    weights.CopyFrom(numpy_helper.from_array(np.take(values, order, axis), weights.name))
    onnx.save(network, str(model / str(bad) / "model.onnx"))


@contextmanager
def served(rate: float) -> Iterator[tuple[Loop, Requests]]:
    """Start the server with version 1 of the model, recording all; send requests to it."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as private:
        models, tape = Path(private, "models"), Path(private, "tape")
        tape.mkdir(0o700)
        shutil.copytree(
            ROOT / "model_repository" / MODEL,
            models / MODEL,
            ignore=shutil.ignore_patterns("[2-9]", "*.json"),
        )
        flags = ("--model-control-mode=explicit", f"--load-model={MODEL}", f"--tape={tape}", "--tape-rate=1")
        log = Path(os.environ.get("LONG_LOG") or Path(private, "server.log"))
        arguments = [f"--model-repository={models}", *flags, f"--tape-rate-limit={64 << 20}"]
        server = Server(arguments, log, {"TMPDIR": private}).start()
        try:
            with Requests(server.http_url, rate).running() as requests:
                yield Loop(server, models, tape, requests), requests
        finally:
            server.stop()


def main() -> int:
    """Go around once; return 0 if every step came and no request failed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.long.loop",
    )
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second (12)")
    parser.add_argument("--rows", type=int, default=3000, help="recorded before a version is made (3000)")
    given = parser.parse_args()
    begun = time.monotonic()

    def done(step: str, what: object = "") -> None:
        say(f"{time.monotonic() - begun:7.1f} s  {step}  {what}")

    with served(given.rate) as (loop, requests):
        loop.record(given.rows)
        done("recorded", dict(requests.answered))
        loop.reference()
        done("the reference is used")
        loop.optimise()
        done("a cheaper version is written")
        loop.steady(begun)
        loop.roll_out(_CHEAPER)
        done("it has taken over", dict(requests.answered))
        done("saving", loop.saving())
        done("drift was noticed", f"after {loop.drift():.0f} s")
        done("a wrong version was refused", loop.refuse(_CHEAPER, _CHEAPER + 1))
        done("requests", f"{dict(requests.answered)}, failed {len(requests.failed)} {requests.failed[:5]}")
    return 1 if requests.failed or time.monotonic() - begun > _LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
