"""`nereid batch` against a bare loop over the same pictures: decode, crop, normalise, ONNX Runtime.

They take turns, and ask for 8 pictures at once. The loop has as many threads as the models: one for each of
two instances, in which operators run alone, and that decodes pictures while the other one computes. Prints
the ratios of rates and of processor time, and fails if answers differ.

    python -m benchmarks.offline --pictures 400 --rounds 3
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from app.offline.blocks import Block, blocks, open_source
from app.offline.execution import Job
from app.offline.output import Output
from app.offline.run import Worker
from benchmarks.tools import ROOT
from nereid.internals import load_internals

MODEL = ROOT / "model_repository" / "efficientnet_lite0_onnx" / "2" / "model.onnx"
ROWS = 8
THREADS = 2
"""As many as the network has instances."""


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEG files of different sizes and contents."""
    random = np.random.default_rng(0)
    for number in range(count):
        height, width = random.integers(180, 360, 2).tolist()
        tiles = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        tiles.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg", quality=85)


class BareLoop:
    """Computes the probabilities of pictures, as the models of the ensemble do, in as many threads."""

    def __init__(self) -> None:
        load_internals()  # finds the client library
        from nereid_client import vision

        self._vision = vision
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max((os.cpu_count() or 1) // THREADS, 1)
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(str(MODEL), options, providers=providers)
        self._threads = ThreadPoolExecutor(THREADS)
        self._input = self._session.get_inputs()[0].name

    def run(self, paths: Sequence[Path]) -> Any:
        """Return probabilities, FP32 [pictures, 1000]."""
        parts = [paths[at : at + ROWS] for at in range(0, len(paths), ROWS)]
        return np.concatenate([*self._threads.map(self._answer, parts)])

    def _answer(self, part: Sequence[Path]) -> Any:
        return self._session.run(None, {self._input: np.stack([self._tensor(path) for path in part])})[0]

    def _tensor(self, path: Path) -> Any:
        picture = self._vision.decode(path.read_bytes())
        height, width = picture.shape[:2]
        side = round(224 / 256 * min(height, width))
        left, top = (width - side) // 2, (height - side) // 2
        box = left, top, left + side, top + side
        cut = self._vision.resize(picture, (224, 224), "bicubic", box=box)
        return self._vision.normalise(cut, mean=127, scale=128)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that it takes, and those of processors."""
    wall, processors = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processors


def compare(pictures: Path, output: Path, rounds: int) -> list[tuple[float, float]]:
    """Return the ratios of each round: rate of `nereid batch` to the loop's, and its processor time."""
    job = Job((str(ROOT / "model_repository"),), "efficientnet_ensemble", columns={"image": ("bytes",)})
    source = open_source(str(pictures))
    paths, every = sorted(pictures.iterdir()), blocks(source, 10**6)
    bare, ratios = BareLoop(), []
    with closing(Worker(job, source, Output.open(str(output)))) as worker:

        def write(block: Block) -> None:
            worker.write(block)

        write(every[0])
        check(output, bare.run(paths))
        for _ in range(rounds):
            ours = timed(lambda: write(every[0]))
            theirs = timed(lambda: bare.run(paths))
            ratios.append((theirs[0] / ours[0], ours[1] / theirs[1]))
            print(f"rate {ratios[-1][0]:.2f} of the loop's, processor time {ratios[-1][1]:.2f}", flush=True)
    return ratios


def check(output: Path, wanted: Any) -> None:
    """End the program if answers are not those of the loop."""
    (part,) = output.glob("part-*")
    column: pa.ChunkedArray = pq.read_table(part)["probabilities"]
    found = column.combine_chunks().flatten().to_numpy().reshape(wanted.shape)
    if not np.allclose(found, wanted, atol=1e-5):
        sys.exit("the answers differ")


def main() -> None:
    """Run the command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder, "pictures")
        pictures.mkdir()
        make_pictures(pictures, arguments.pictures)
        ratios = compare(pictures, Path(folder, "output"), arguments.rounds)
    rate, processors = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(f"median: rate {rate:.2f}, processor time {processors:.2f}")


if __name__ == "__main__":
    main()
