"""TVM alone: compiles a model into a folder, and runs it for each line of its input.

python bare_tvm.py FOLDER WIDTH LAYERS
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn


class Dense(nn.Module):  # type: ignore[misc]
    """Dense layers, the last one with 10 outputs."""

    def __init__(self, width: int, layers: int) -> None:
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(layers - 1)])
        self.last = nn.Linear(width, 10)

    def main(self, x: Any) -> Any:
        """Return the last layer's output for rows."""
        for each in self.hidden:
            x = nn.op.relu(each(x))
        return self.last(x)


def prepared(folder: Path, width: int, layers: int) -> Callable[[], Any]:
    """Compile a model of dense layers; return a call that runs it on 8 rows by one thread."""
    os.environ |= {"TVM_NUM_THREADS": "1", "TVM_BIND_THREADS": "0"}  # read when TVM starts its threads
    spec = {"main": {"x": nn.spec.Tensor(("n", width), "float32")}}
    module, parameters = Dense(width, layers).export_tvm(spec=spec)
    ones = {name: np.full([int(size) for size in each.shape], 0.01, np.float32) for name, each in parameters}
    bound = {name: tvm.runtime.tensor(array) for name, array in ones.items()}
    library = folder / "1" / "model.so"
    library.parent.mkdir()
    tvm.compile(relax.transform.BindParams("main", bound)(module), target="llvm").export_library(str(library))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    x = np.ones((8, width), np.float32)

    def call() -> Any:
        return machine["main"](tvm.runtime.tensor(x)).numpy()

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
