"""What two real rollouts save, from live traffic: one to an equal version, one to a version of half the work.

python -m tests.long.saving
python -m tests.long.saving --again minutes.json    # 20 equal versions out of minutes that were recorded

Two models burn 8 ms of processor time a row. Version 2 of `alike` does so too, of `half` 4 ms. After some
minutes of version 1, version 2 of both takes over. Then `alike` must show no saving, and in the interval of
`half` must lie 4 ms a row: a little less than 50 %, as what a request costs beside its rows is not halved.
The load rises and falls meanwhile. What each version consumed in each minute, by the server's metrics, is
written to a file, and 20 pairs of equal versions are made of it.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from math import pi, sin
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.http as http_client
from prometheus_client.parser import text_string_to_metric_families

from app.core.cost.minutes import MinuteUse
from app.core.rollout.saving import MIN_MINUTES, saving
from tests.long.client_threads import ClientThreads
from tests.long.server import say
from tests.server import Server, wait_until

MODEL: Final = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            until = time.thread_time() + ROW_S * len(x)
            while time.thread_time() < until:
                pass
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
"""
CONFIG: Final = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
ROW_S: Final = 0.008
FACTORS: Final = {"alike": 1.0, "half": 0.5}
"""Of version 2, by model."""
PACE_S: Final = 0.4
"""Between two requests of a model, on average."""
SWING_S: Final = 1500.0
"""Of the load: half as much again, and half as much less."""
RUNS: Final = 20
Recorded = dict[str, list[list[float]]]
"""Minute, processor seconds and rows of each minute, by model and version as `half:2`."""


def write(repository: Path, model: str, version: int) -> None:
    directory = repository / model
    (directory / str(version)).mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG)
    row_s = ROW_S * (FACTORS[model] if version == 2 else 1.0)
    (directory / str(version) / "model.py").write_text(f"ROW_S = {row_s}\n{MODEL}")


def rollout(server: Server, model: str, change: dict[str, Any] | None = None) -> Any:
    """Change the rollout of a model if there is a change; return its status."""
    path = f"/v2/repository/models/{model}/rollout" if change else f"/v2/models/{model}/rollout"
    body = json.dumps(change).encode() if change else None
    with urllib.request.urlopen(f"http://{server.http_url}{path}", body, timeout=120) as answer:
        return json.load(answer)


class Clients(ClientThreads):
    """One client of each model, whose pace rises and falls."""

    def __init__(self, server: Server) -> None:
        self.failed: list[str] = []
        super().__init__([partial(self._run, server.http_url, model) for model in FACTORS], 60.0)

    def _run(self, url: str, model: str) -> None:
        random = np.random.default_rng(len(model))
        began = time.monotonic()
        with http_client.InferenceServerClient(url) as client:
            while not self.stop.is_set():
                x = np.zeros((int(random.integers(1, 9)), 1), np.float32)
                given = http_client.InferInput("x", x.shape, "FP32")
                given.set_data_from_numpy(x)
                try:
                    client.infer(model, [given])
                except Exception as error:
                    self.failed.append(f"{model}: {error}")
                load = 1 + 0.5 * sin(2 * pi * (time.monotonic() - began) / SWING_S)
                self.stop.wait(float(random.exponential(PACE_S)) / load)


class Recorder:
    """Reads once a minute, in a thread, what each version has consumed."""

    def __init__(self, server: Server) -> None:
        self.minutes: Recorded = {}
        self._url, self._end = f"http://127.0.0.1:{server.metrics_port}/metrics", threading.Event()
        self._before: dict[str, list[float]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._end.wait(60 - time.time() % 60):
            minute, now = int(time.time() // 60) - 1, self._read()
            for key, sums in now.items():
                before = self._before.get(key)
                if before is not None and sums[1] >= before[1]:  # those of a version that is gone begin anew
                    used = [sums[0] - before[0], sums[1] - before[1]]
                    self.minutes.setdefault(key, []).append([minute, *used])
            self._before = now

    def _read(self) -> dict[str, list[float]]:
        """Return processor seconds and rows of each version so far."""
        places = {"nereid_cost_cpu_seconds": 0, "nereid_cost_idle_cpu_seconds": 0, "nv_inference_count": 1}
        found: dict[str, list[float]] = {}
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        for sample in (sample for family in families for sample in family.samples):
            place = places.get(sample.name.removesuffix("_total"))
            if place is not None and sample.labels.get("model") in FACTORS:
                sums = found.setdefault(f"{sample.labels['model']}:{sample.labels['version']}", [0.0, 0.0])
                sums[place] += sample.value
        return found


def promote(server: Server, repository: Path) -> None:
    """Let version 2 of both models answer everything."""
    for model in FACTORS:
        write(repository, model, 2)
        policy = {"keep_stable_seconds": 60, "judge": {"output": None}}
        rollout(server, model, {"action": "start", "candidate": 2, "weight": 100, "spec": policy})
    for model in FACTORS:
        done = partial(lambda name: rollout(server, name)["state"] in ("promoted", "done"), model)
        wait_until(done, 180, f"version 2 of {model} answers everything")


def measured(minutes: float, directory: Path) -> tuple[dict[str, Any], Recorded, list[str]]:
    """Run both rollouts; return what each saves, the minutes that were recorded, and what failed."""
    repository = directory / "models"
    for model in FACTORS:
        write(repository, model, 1)
    arguments = [f"--model-repository={repository}", f"--state-directory={directory / 'state'}"]
    server = Server(arguments, directory / "server.log", {"TMPDIR": str(directory)}).start()
    try:
        with Recorder(server) as recorder, Clients(server) as clients:
            time.sleep(60 * minutes)
            promote(server, repository)
            say("version 2 of both models answers everything")
            time.sleep(60 * (minutes + 1))
            found = {model: rollout(server, model)["saving"] for model in FACTORS}
            return found, recorder.minutes, clients.failed
    finally:
        server.stop()


def complaints(found: dict[str, Any]) -> Iterator[str]:
    """What is wrong."""
    for model, factor in FACTORS.items():
        share = (found[model] or {}).get("share")
        if share is None:
            yield f"{model}: nothing can be said: {found[model]}"
            continue
        saved = 1000 * ROW_S * (1 - factor) / found[model]["stable_ms"]
        if not share["low"] <= saved <= share["high"]:
            yield f"{model}: {saved:.1%} is not in its interval: {share}"


def again(recorded: Recorded) -> bool:
    """Compare 20 pairs of equal versions made of recorded minutes; print in how many a saving is shown.

    A pair is the minutes of `alike`, cut into two halves at a place drawn; the last is followed by the first
    one. What disturbs them is real, and the pairs overlap.
    """
    random = np.random.default_rng(1)
    minutes = [*recorded["alike:1"][2:], *recorded["alike:2"][2:]]
    uses = [MinuteUse(int(minute), seconds, int(rows)) for minute, seconds, rows in minutes]
    around = [*uses, *uses]
    half, shown = len(uses) // 2, 0
    for run in range(RUNS):
        first = int(random.integers(0, len(uses)))
        found = saving(around[first : first + half], around[first + half : first + 2 * half], 1, run)
        shown += found.shown or found.worse
        say(f"equal versions {run + 1}: {found.share or found.waiting}")
    say(f"{RUNS - shown} of {RUNS} pairs of equal versions show no saving")
    return shown <= RUNS // 20


def run(minutes: float, record: Path) -> bool:
    """Run both rollouts; return whether nothing is wrong."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as directory:
        found, recorded, failed = measured(minutes, Path(directory))
    record.write_text(json.dumps(recorded))
    for model, each in found.items():
        say(f"{model}: {each}")
    wrong = [*complaints(found), *failed[:5]]
    for line in wrong:
        say(f"WRONG: {line}")
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    text = "of each version of both models; twice as many go by"
    parser.add_argument("--minutes", type=float, default=MIN_MINUTES + 5, help=text)
    parser.add_argument("--record", type=Path, default=Path("minutes.json"), help="file of minutes to write")
    parser.add_argument("--again", type=Path, help="file of minutes to read, instead of a run")
    options = parser.parse_args()
    if options.again is not None:
        sys.exit(not again(json.loads(options.again.read_text())))
    sys.exit(not run(options.minutes, options.record))


if __name__ == "__main__":
    main()
