"""Paddle alone: writes a model into a folder, and runs it for each line of its input.

python bare_paddle.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import inference
from paddle.static import InputSpec


def main(folder: Path) -> None:
    """Answer each line by an empty one, when the batch has run."""
    paddle.seed(1)
    dense = paddle.nn.Sequential(paddle.nn.Linear(256, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 10))
    dense.eval()
    files = folder / "1" / "model"
    paddle.jit.save(dense, str(files), input_spec=[InputSpec([None, 256], "float32", "x")])
    config = inference.Config(f"{files}.json", f"{files}.pdiparams")
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    predictor = inference.create_predictor(config)
    given, found = (
        predictor.get_input_handle("x"),
        predictor.get_output_handle(predictor.get_output_names()[0]),
    )
    x = np.ones((8, 256), np.float32)
    print(flush=True)
    for _ in sys.stdin:
        given.copy_from_cpu(x)
        predictor.run()
        found.copy_to_cpu()
        print(flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
