"""A module with arguments and results of every structure, its configuration, and its answers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.pytorch.backend import TorchBackend
from tests.unit.backend_harness import Served, config


class Nested(torch.nn.Module):
    """Results are sums and products of the arguments, so that each can be told from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor([100.0, 100.0]))

    def forward(self, x: Any, options: Any, *, scale: Any) -> Any:
        total = x + options["one"] + self.offset
        return {"total": total, "parts": (x * scale, [options["two"] - x])}


INPUTS = ("ARGS[0]", "ARGS[1][one]", "ARGS[1][two]", "KWARGS[scale]")
OUTPUTS = ("RESULT[total]", "RESULT[parts][0]", "RESULT[parts][1][0]")
BY_POSITION = (
    *(f"INPUT__{place}" for place in range(len(INPUTS))),
    *(f"OUTPUT__{place}" for place in range(len(OUTPUTS))),
)


def export(largest: int = 8) -> Any:
    """Export `Nested` for 1 to `largest` rows of two numbers."""
    rows = {0: torch.export.Dim("rows", min=1, max=largest)}
    x, one, two, scale = (torch.ones(2, 2) for _ in INPUTS)  # the same one would make them one input
    return torch.export.export(
        Nested().eval(),
        (x, {"one": one, "two": two}),
        {"scale": scale},
        dynamic_shapes={"x": rows, "options": {"one": rows, "two": rows}, "scale": rows},
    )


def text(inputs: Any = INPUTS, outputs: Any = OUTPUTS, extra: str = "", dims: str = "dims: 2") -> str:
    """Return the configuration with these names for the tensors."""
    tensors = [f'input {{ name: "{name}" data_type: TYPE_FP32 {dims} }}' for name in inputs]
    tensors += [f'output {{ name: "{name}" data_type: TYPE_FP32 dims: 2 }}' for name in outputs]
    return f'name: "x" backend: "pytorch" max_batch_size: 16 {" ".join(tensors)} {extra}'


def serve(configuration: str, folder: Path, **options: Any) -> Served:
    """Load the model of a folder."""
    return Served(TorchBackend, config(configuration), folder, **options)


def arrays(names: Any = INPUTS, rows: int = 1) -> dict[str, Any]:
    """Return inputs of 1, 2, 3 and 4."""
    return {name: np.full((rows, 2), number, np.float32) for number, name in enumerate(names, 1)}


ANSWER = (103, 4, 2)
"""What the outputs hold for `arrays`, in order."""
