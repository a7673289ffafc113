"""Libraries of operations that a configuration names for the pytorch backend."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from app.core.errors import ErrorCode, InferError
from backends.pytorch.backend import TorchBackend
from tests.unit.backend_harness import Served, config, infer

_SOURCE = """
#include <torch/library.h>
#include <ATen/ATen.h>

static at::Tensor shifted(const at::Tensor& x) { return x + 3; }

TORCH_LIBRARY(nereid_test, library) { library.def("shifted", &shifted); }
"""
_CONFIG = """
    name: "x" backend: "pytorch" max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: 2 } output { name: "y__0" data_type: TYPE_FP32 dims: 2 }
    model_operations { op_library_filename: "%s" }
"""


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def build(source: str, library: Path, *flags: str) -> None:
    path = library.with_suffix(".cpp")
    path.write_text(source)
    subprocess.run(["c++", "-shared", "-fPIC", str(path), *flags, "-o", str(library)], check=True)


def save(module: Any, folder: Path) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    torch.jit.script(module).save(str(folder / "1" / "model.pt"))
    return folder


def test_library_is_loaded_before_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(Same(), tmp_path / "x")
    build('extern "C" int nereid_probe() { return 7; }', folder / "1" / "ops.so")
    Served(TorchBackend, config(_CONFIG % "ops.so"), folder)
    assert str(folder / "1" / "ops.so") in torch.ops.loaded_libraries


@pytest.mark.parametrize("name", ["/elsewhere/ops.so", "../../ops.so"])
def test_library_outside_of_the_model_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InferError, match="--backend-config=pytorch,extension-directory=DIRECTORY") as raised:
        Served(TorchBackend, config(_CONFIG % name), save(Same(), tmp_path / "x"))
    assert raised.value.code is ErrorCode.INVALID_ARG


def test_library_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    folder = save(Same(), tmp_path / "x")
    (folder / "1" / "ops.so").write_text("nothing")
    with pytest.raises(
        InferError, match=r"unable to load a library of operations of model 'x': .*file too short"
    ):
        Served(TorchBackend, config(_CONFIG % "ops.so"), folder)


_LIBRARY = """
import torch
library = torch.library.Library("{0}", "DEF")
library.define("{1}(Tensor x) -> Tensor")
library.impl("{1}", lambda x: x + 3, "CPU")
"""
_SAVED = """
class Shift(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.{0}.{1}(x)
torch.jit.trace(Shift(), torch.zeros(1, 2)).save("{2}")
del library
"""
_OPERATIONS = (("nereid_none", "shifted"), ("torchvision", "gone"), ("torchvision", "nms"))


@pytest.fixture(scope="module")
def shifting(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The directory of a module that calls an operation which only another process has had."""
    root = tmp_path_factory.mktemp("shifting")
    program = ""
    for library, operation in _OPERATIONS:
        path = root / library / operation / "x" / "1" / "model.pt"
        path.parent.mkdir(parents=True)
        program += (_LIBRARY + _SAVED).format(library, operation, path)
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    return lambda library, operation: root / library / operation / "x"


def test_unknown_operation_is_named_with_what_to_do(shifting: Callable[[str, str], Path]) -> None:
    plain = config((_CONFIG % "").replace('model_operations { op_library_filename: "" }', ""))
    with pytest.raises(InferError, match="unknown operation 'nereid_none::shifted': 'op_library_filename'"):
        Served(TorchBackend, plain, shifting("nereid_none", "shifted"))
    with pytest.raises(InferError, match="'torchvision::gone': it is of the package torchvision"):
        Served(TorchBackend, plain, shifting("torchvision", "gone"))


def test_operations_of_torchvision_are_imported_where_a_model_calls_them(
    shifting: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(_LIBRARY.format("torchvision", "nms"))
    monkeypatch.syspath_prepend(tmp_path)
    plain = config((_CONFIG % "").replace('model_operations { op_library_filename: "" }', ""))
    served = Served(TorchBackend, plain, shifting("torchvision", "nms"))
    assert served(infer({"x": np.zeros((1, 2), np.float32)}))[0].arrays["y__0"].tolist() == [[3, 3]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_module_calls_an_operation_of_its_library(tmp_path: Path) -> None:
    """The compiler takes ten seconds for PyTorch's headers."""
    folder = tmp_path / "x"
    (folder / "1").mkdir(parents=True)
    where = Path(torch.__file__).parent
    headers = ("-std=c++20", f"-I{where}/include", f"-I{where}/include/torch/csrc/api/include")
    libraries = (f"-L{where}/lib", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10")
    build(_SOURCE, folder / "1" / "ops.so", *headers, *libraries)
    # In a process of its own, so that this one learns of the operation from the backend alone.
    saved = """
import sys, torch
torch.ops.load_library(sys.argv[1])
class Shift(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.nereid_test.shifted(x)
torch.jit.trace(Shift(), torch.zeros(1, 2)).save(sys.argv[2])
"""
    paths = [str(folder / "1" / name) for name in ("ops.so", "model.pt")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", saved, *paths], check=True, cwd=tmp_path)
    served = Served(TorchBackend, config(_CONFIG % "ops.so"), folder)
    found = served(infer({"x": np.zeros((1, 2), np.float32)}))[0].arrays["y__0"]
    assert found.tolist() == [[3, 3]]
