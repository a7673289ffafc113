"""TVM alone: compiles a model into a folder, and runs it for each line of its input.

python bare_tvm.py FOLDER
"""

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
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 10)

    def main(self, x: Any) -> Any:
        """Return the second layer's output for rows of 256."""
        return self.second(nn.op.relu(self.first(x)))


def main(folder: Path) -> None:
    """Answer each line by an empty one, when the batch has run."""
    module, parameters = Dense().export_tvm(spec={"main": {"x": nn.spec.Tensor(("n", 256), "float32")}})
    ones = {name: np.full([int(size) for size in each.shape], 0.01, np.float32) for name, each in parameters}
    bound = {name: tvm.runtime.tensor(array) for name, array in ones.items()}
    library = folder / "1" / "model.so"
    library.parent.mkdir()
    tvm.compile(relax.transform.BindParams("main", bound)(module), target="llvm").export_library(str(library))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    x = np.ones((8, 256), np.float32)
    print(flush=True)
    for _ in sys.stdin:
        machine["main"](tvm.runtime.tensor(x)).numpy()
        print(flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
