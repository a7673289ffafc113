"""Writes Paddle models into a directory, with inputs and Paddle's own answers; runs where Paddle is."""

import sys
from pathlib import Path

import numpy as np
import paddle
from paddle.static import InputSpec


def main(root: Path) -> None:
    """Write models and answers.

    `dense`, and the same as Paddle 2 does, `old`; `two`, of two inputs and outputs; and `same_<type>`, whose
    output is its input.
    """
    paddle.seed(3)
    dense = paddle.nn.Sequential(paddle.nn.Linear(16, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 4))
    image = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    save(root / "dense", dense, [InputSpec([None, 16], "float32", "x")])
    np.savez(root / "dense" / "expected.npz", x=image, y=dense(paddle.to_tensor(image)).numpy())
    with paddle.pir_utils.OldIrGuard():
        save(root / "old", dense, [InputSpec([None, 16], "float32", "x")])
    save(root / "two", Two(), [InputSpec([None, 2], "int64", name) for name in ("a", "b")])
    for kind in ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
        save(root / f"same_{kind}", Same(), [InputSpec([None, 3], kind, "x")])


class Same(paddle.nn.Layer):  # type: ignore[misc]
    """Returns its input."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return a copy."""
        return paddle.assign(x)


class Two(paddle.nn.Layer):  # type: ignore[misc]
    """Sum and difference."""

    def forward(self, a: paddle.Tensor, b: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return both."""
        return a + b, a - b


def save(folder: Path, layer: paddle.nn.Layer, inputs: list[InputSpec]) -> None:
    """Save a layer as version 1."""
    layer.eval()
    paddle.jit.save(layer, str(folder / "1" / "model"), input_spec=inputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
