"""EfficientNet-Lite0 in each form that PyTorch has, compared with ONNX Runtime's answer."""

import shutil
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("efficientnet_lite_pytorch")

import onnxruntime
import torch

from backends.base import Model
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from model_repository.build import REPOSITORY, efficientnet_lite0
from tests.unit.backend_harness import Served, config, infer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
    name: "m" backend: "pytorch" max_batch_size: 8
    input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
    output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: 1000 }} {}
"""
CODE = """
import onnxruntime
import torch
from efficientnet_lite_pytorch import EfficientNet

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(EfficientNet.from_name("efficientnet-lite0"), torch.nn.Softmax(dim=1))
"""
DISABLED = '{\\"disable\\": true}'
EAGER = f"""
    runtime: "model.py"
    parameters {{ key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value {{ string_value: "{DISABLED}" }} }}
"""


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Ignore what PyTorch's exporters and compilers warn of in their own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def images() -> Any:
    return np.random.default_rng(0).standard_normal((3, 3, 224, 224), dtype=np.float32)


@cache
def expected() -> Any:
    session = onnxruntime.InferenceSession(str(REPOSITORY / "efficientnet_lite0_onnx/1/model.onnx"))
    return session.run(None, {session.get_inputs()[0].name: images()})[0]


@cache
def program() -> Any:
    rows = {0: torch.export.Dim("rows", min=1, max=8)}
    example = torch.zeros(2, 3, 224, 224)
    return torch.export.export(efficientnet_lite0(), (example,), dynamic_shapes=(rows,))


def write_exported(folder: Path) -> None:
    torch.export.save(program(), folder / "model.pt2")


def write_package(folder: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("compiling a package needs g++")
    torch._inductor.aoti_compile_and_package(program(), package_path=str(folder / "model.pt2"))


def write_torchscript(folder: Path) -> None:
    traced: Any = torch.jit.trace(efficientnet_lite0(), torch.zeros(1, 3, 224, 224))  # type: ignore[no-untyped-call]
    traced.save(str(folder / "model.pt"))


def write_eager(folder: Path) -> None:
    (folder / "model.py").write_text(CODE)
    torch.save(efficientnet_lite0().state_dict(), folder / "model.pt")


@pytest.mark.parametrize(
    ("write", "extra"),
    [
        (write_torchscript, ""),
        (write_exported, ""),
        (write_package, 'platform: "torch_aoti"'),
        (write_eager, EAGER),
    ],
)
def test_answer_is_that_of_onnxruntime(write: Any, extra: str, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    write(tmp_path / "1")
    declared = config(CONFIG.format(extra))
    model = Model(declared, 1, tmp_path)
    model.common_file = BackendPlace("pytorch", None, declared.runtime).python_file
    model.interpreter = Path(sys.executable) if declared.runtime else None
    served = Served(find_backend(BackendPlace("pytorch", None, declared.runtime)), model)
    for rows in (slice(0, 1), slice(0, 3)):
        (call,) = served(infer({"INPUT__0": images()[rows]}))
        assert np.abs(call.arrays["OUTPUT__0"] - expected()[rows]).max() < 1e-4
    served.close()
