"""Paddle alone: writes a model into a folder, and runs it for each line of its input.

python bare_paddle.py FOLDER WIDTH LAYERS
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference
from paddle.static import InputSpec


def prepared(folder: Path, width: int, layers: int) -> Callable[[], Any]:
    """Write a model of dense layers; return a call that runs it on 8 rows, and returns its output."""
    paddle.seed(1)
    hidden = [each for _ in range(layers - 1) for each in (paddle.nn.Linear(width, width), paddle.nn.ReLU())]
    dense = paddle.nn.Sequential(*hidden, paddle.nn.Linear(width, 10))
    dense.eval()
    files = folder / "1" / "model"
    paddle.jit.save(dense, str(files), input_spec=[InputSpec([None, width], "float32", "x")])
    config = inference.Config(f"{files}.json", f"{files}.pdiparams")
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    predictor = inference.create_predictor(config)
    given, found = (
        predictor.get_input_handle("x"),
        predictor.get_output_handle(predictor.get_output_names()[0]),
    )
    x = np.ones((8, width), np.float32)

    def call() -> Any:
        given.copy_from_cpu(x)
        predictor.run()
        return found.copy_to_cpu()

    call()
    return call


def main(folder: Path, width: int, layers: int) -> None:
    """Answer each line by an empty one, when the batch has run."""
    call = prepared(folder, width, layers)
    print(flush=True)
    for _ in sys.stdin:
        call()
        print(flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
