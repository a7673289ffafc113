"""EfficientNet-Lite0 in each form that PyTorch has, and a small layer, where the overhead of a call shows.

One thread within an operator on both sides: several wait for each other on a busy machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.backends import Call, Row, served
from model_repository.build import efficientnet_lite0

CONFIG: Final = """
    name: "m" backend: "pytorch" max_batch_size: 8
    input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: {dims} }}
    output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }}
    parameters {{ key: "INTRA_OP_THREAD_COUNT" value {{ string_value: "1" }} }} {extra}
"""
EAGER: Final = """
import torch
from model_repository.build import efficientnet_lite0

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = efficientnet_lite0()

    def forward(self, x):
        return self.net(x)
"""
COMPILED_NOT: Final = """
    runtime: "model.py"
    parameters { key: "NUM_THREADS" value { string_value: "1" } }
    parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" } }
"""

Save = Callable[[Any, Path], Callable[[Any], Any]]
"""Writes a program for the backend; returns the bare call of it."""


def rows() -> Iterable[Row]:
    """Return one row for each kind of model."""
    yield Row("exported program, EfficientNet-Lite0, 1 row", lambda folder: of_program(folder, _exported))
    yield Row("exported program, linear layer, 1 row", lambda folder: of_small(folder, _exported))
    if shutil.which("g++"):
        yield Row(
            "AOTInductor package, EfficientNet-Lite0, 1 row", lambda folder: of_program(folder, _package)
        )
        yield Row("AOTInductor package, linear layer, 1 row", lambda folder: of_small(folder, _package))
    yield Row("TorchScript, EfficientNet-Lite0, 1 row", of_torchscript)
    yield Row("eager module, EfficientNet-Lite0, 1 row", of_eager)


def of_program(folder: Path, save: Save) -> tuple[Call, Call]:
    """Serve EfficientNet-Lite0 in a form that torch.export makes."""
    return _both(folder, save, _exported_network(), (3, 224, 224))


def of_small(folder: Path, save: Save) -> tuple[Call, Call]:
    """Serve a module so small that the rest of a call takes longer."""
    return _both(folder, save, _export(torch.nn.Linear(16, 16).eval(), (16,)), (16,))


def of_torchscript(folder: Path) -> tuple[Call, Call]:
    """Serve a traced module."""
    jit: Any = torch.jit
    traced = jit.freeze(jit.trace(efficientnet_lite0(), torch.zeros(1, 3, 224, 224)))
    return _pair(folder, traced, (3, 224, 224), lambda path: jit.save(traced, str(path / "model.pt")))


def of_eager(folder: Path) -> tuple[Call, Call]:
    """Serve a module's code, without torch.compile on either side."""
    write = (folder / "1" / "model.py").write_text
    return _pair(folder, efficientnet_lite0(), (3, 224, 224), lambda path: write(EAGER), COMPILED_NOT)


def _both(folder: Path, save: Save, program: Any, shape: tuple[int, ...]) -> tuple[Call, Call]:
    (folder / "1").mkdir()
    bare = save(program, folder / "1" / "model.pt2")
    return _pair(folder, bare, shape, lambda path: None)


def _pair(
    folder: Path,
    bare: Callable[[Any], Any],
    shape: tuple[int, ...],
    write: Callable[[Path], object],
    extra: str = "",
) -> tuple[Call, Call]:
    (folder / "1").mkdir(exist_ok=True)
    write(folder / "1")
    array = np.random.default_rng(0).standard_normal((1, *shape), dtype=np.float32)
    ours = served(CONFIG.format(dims=list(shape), extra=extra), folder, {"INPUT__0": array})
    tensor = torch.from_numpy(array)

    def call() -> Any:
        with torch.inference_mode():
            return bare(tensor)

    return ours, call


def _exported(program: Any, path: Path) -> Callable[[Any], Any]:
    torch.export.save(program, path)
    module: Callable[[Any], Any] = torch.export.load(path).module()
    return module


def _package(program: Any, path: Path) -> Callable[[Any], Any]:
    torch.set_num_threads(1)  # compiled in
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    loaded: Callable[[Any], Any] = torch._inductor.aoti_load_package(str(path))
    return loaded


@cache
def _exported_network() -> Any:
    return _export(efficientnet_lite0(), (3, 224, 224))


def _export(module: Any, shape: tuple[int, ...]) -> Any:
    rows = {0: torch.export.Dim("rows", min=1, max=8)}
    return torch.export.export(module, (torch.zeros(2, *shape),), dynamic_shapes=(rows,))
