"""Compiles models into a directory; runs where TVM is."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn


class Dense(nn.Module):  # type: ignore[misc]
    """Two layers."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)

    def main(self, x: Any) -> Any:
        """Return the second layer's output for rows of 16."""
        return self.second(nn.op.relu(self.first(x)))


def dense(root: Path) -> Any:
    """Return a module with its weights in it; they are in `root`, too."""
    module, parameters = Dense().export_tvm(spec={"main": {"x": nn.spec.Tensor(("n", 16), "float32")}})
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal([int(size) for size in each.shape], np.float32)
        for name, each in parameters
    }
    np.savez(root / "weights.npz", **weights)  # type: ignore[arg-type]
    bound = {name: tvm.runtime.tensor(array) for name, array in weights.items()}
    return relax.transform.BindParams("main", bound)(module)


def two() -> Any:
    """Return a module whose function `both` gives the sum and the difference of two vectors."""
    builder, rows = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    a, b = (relax.Var(name, relax.TensorType([rows, 2], "int64")) for name in ("a", "b"))
    with builder.function("both", [a, b]):
        builder.emit_func_output(relax.Tuple([builder.emit(a + b), builder.emit(a - b)]))
    return builder.get()


def main(root: Path) -> None:
    """Write `dense` and `two`."""
    for name, module in (("dense", dense(root)), ("two", two())):
        (root / name / "1").mkdir(parents=True)
        tvm.compile(module, target="llvm").export_library(str(root / name / "1" / "model.so"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
