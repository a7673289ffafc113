"""AOTInductor packages: what is read out of one, and one that is compiled here."""

import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from app.core.errors import ErrorCode, InferError
from backends.pytorch.aoti import bounds_of, dtypes_of, unfit
from tests.unit.backend_harness import infer
from tests.unit.backends.pytorch import programs
from tests.unit.backends.pytorch.programs import ANSWER, BY_POSITION, INPUTS, OUTPUTS, arrays, serve, text


def check(number: int, what: str, expected: str) -> str:
    """A check in the source of a library, as PyTorch 2.13 writes it."""
    return f"""
        std::stringstream ss;
        ss << "input_handles[{number}]: {what}, "
           << "{expected}, " << "but got: "
           << arg_size[0] << "\\n";
    """


def dtype(number: int, kind: str) -> str:
    """The check of a data type."""
    return f"""
        ss << "input_handles[{number}]: unmatched dtype, "
           << "expected: " << arg2_1_expected_dtype << "(at::k{kind}), "
    """


IMAGE = (
    dtype(0, "Float"),
    check(0, "dim value is too small at 0", "expected it to be >= 2"),
    check(0, "dim value is too large at 0", "expected to be <= 64"),
    *(check(0, f"unmatched dim value at {place}", f"expected: {size}") for place, size in ((1, 3), (3, 4))),
    check(0, "dim value is too small at 2", "expected it to be >= 8"),
)
CONTIGUOUS = tuple(
    check(0, f"unmatched stride value at {place}", f"expected: {stride}")
    for place, stride in ((2, 4), (3, 1))
)
CHANNELS_LAST = tuple(
    check(0, f"unmatched stride value at {place}", f"expected: {stride}")
    for place, stride in ((1, 1), (3, 3))
)


@pytest.mark.parametrize(
    ("shape", "condition"),
    [
        ((1, 3, 8, 4), ""),  # PyTorch assumed two rows, but computes one right
        ((64, 3, 9, 4), ""),
        ((65, 3, 8, 4), "size at most 64 at dimension 0"),
        ((1, 4, 8, 4), "size 3 at dimension 1"),
        ((1, 3, 7, 4), "size at least 8 at dimension 2"),
        ((1, 3, 8), "4 dimensions"),
    ],
)
def test_bounds_of_an_input(shape: tuple[int, ...], condition: str) -> None:
    bounds = bounds_of("".join(IMAGE + CONTIGUOUS), 1)
    assert bounds is not None
    assert bounds[0].condition(shape, torch.empty(shape).stride()) == condition
    assert bounds[0].smallest() == [1, 3, 8, 4] and bounds[0].shape() == (-1, 3, -1, 4)
    assert not bounds[0].has_channels_last


def test_order_in_memory_of_an_input() -> None:
    bounds = bounds_of("".join(IMAGE + CHANNELS_LAST), 1)
    assert bounds is not None and bounds[0].has_channels_last
    image = torch.empty(2, 3, 8, 4)
    assert bounds[0].condition(image.shape, image.stride()) == "stride 1 at dimension 1"
    image = image.contiguous(memory_format=torch.channels_last)
    assert bounds[0].condition(image.shape, image.stride()) == ""


def test_source_that_says_nothing_of_an_input() -> None:
    assert bounds_of("int main() {}", 1) is None
    assert bounds_of("".join(IMAGE), 2) is None
    assert bounds_of(dtype(0, "Float") + check(3, "unmatched dim value at 0", "expected: 2"), 1) is None
    assert dtypes_of(dtype(1, "Long") + dtype(0, "Strange"), 3) == [None, torch.int64, None]


HERE = {"AOTI_DEVICE_KEY": "cpu", "AOTI_CPU_ISA": "AVX512 AVX512_VNNI"}
CPU = torch.device("cpu")
FLAGS = {"avx2", "avx512f", "avx512_vnni"}


@pytest.mark.parametrize(
    ("metadata", "device", "flags", "why"),
    [
        (HERE, CPU, FLAGS, ""),
        (HERE, None, FLAGS, ""),
        (HERE, CPU, set(), ""),  # not known
        (HERE, CPU, {"avx2"}, "was compiled for a CPU with AVX512, AVX512_VNNI, which this one has not"),
        (HERE | {"AOTI_CPU_ISA": "INVALID_VEC_ISA"}, CPU, {"avx2"}, ""),
        (
            HERE | {"AOTI_DEVICE_KEY": "cuda"},
            CPU,
            FLAGS,
            "was compiled for device 'cuda', the instance runs on 'cpu'",
        ),
        (
            {"AOTI_MACHINE": "s390x", "AOTI_PLATFORM": sys.platform},
            CPU,
            FLAGS,
            "was compiled for s390x linux",
        ),
        ({}, CPU, FLAGS, ""),
    ],
)
def test_machine_that_a_package_does_not_fit(metadata: Any, device: Any, flags: Any, why: str) -> None:
    found = unfit(metadata, device, flags)
    assert found.startswith(why) and bool(found) == bool(why)


def test_missing_package(tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        serve(text(extra='platform: "torch_aoti"'), tmp_path)
    path = tmp_path / "1" / "model.pt2"
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message == f'PyTorch inductor model file "{path}" is unreachable or inaccessible.'


def test_package_of_another_pytorch_is_explained(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with zipfile.ZipFile(tmp_path / "1" / "model.pt2", "w") as archive:
        archive.writestr("m/data/aotinductor/model/broken.so", b"\x7fELF")
        archive.writestr("m/archive_format", "pt2")
    with pytest.raises(InferError) as caught:
        serve(text(), tmp_path)
    assert caught.value.message.startswith("failed to load model 'x': ")
    assert f"compile it here, with PyTorch {torch.__version__}" in caught.value.message


def test_completion_is_skipped(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    from backends.base import Model
    from backends.pytorch.backend import TorchBackend
    from tests.unit.backend_harness import config

    caplog.set_level("INFO")
    TorchBackend.auto_complete(Model(config(text(extra='platform: "torch_aoti"')), 1, tmp_path))
    assert caplog.messages == [
        "Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model"
        ' "x".'
    ]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `programs.Nested`, compiled for 1 to 8 rows."""
    if shutil.which("g++") is None:
        pytest.skip("compiling a package needs g++")
    folder = tmp_path_factory.mktemp("aoti")
    (folder / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own code
        torch._inductor.aoti_compile_and_package(
            programs.export(), package_path=str(folder / "1" / "model.pt2")
        )
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_package(package: Path) -> None:
    for inputs, outputs in ((INPUTS, OUTPUTS), (BY_POSITION[:4], BY_POSITION[4:])):
        served = serve(text(inputs[::-1], outputs, 'platform: "torch_aoti"'), package)
        for _ in range(2):
            for call in served(infer(arrays(inputs, 1)), infer(arrays(inputs, 2))):
                assert [call.arrays[name][-1, 0] for name in outputs] == list(ANSWER)


@pytest.mark.slow
def test_compiled_package_refuses_other_shapes(package: Path) -> None:
    served = serve(text(dims="dims: -1"), package)
    small, large = served(infer(arrays(rows=3)), infer(arrays(rows=9)))
    assert small.arrays["RESULT[total]"].shape == (3, 2)
    assert large.error.startswith(
        "model 'x' was exported for inputs with size at most 8 at dimension 0 in ARGS[0], got 'ARGS[0]' [9,"
    )
    wrong = arrays() | {"ARGS[1][one]": np.ones((1, 3), np.float32)}
    assert "size 2 at dimension 1 in ARGS[1][one]" in served(infer(wrong))[0].error
    with pytest.raises(InferError, match="configuration expects datatype TYPE_INT32 for input 'ARGS"):
        serve(text().replace("TYPE_FP32", "TYPE_INT32", 1), package)
    with pytest.raises(InferError, match=r"configuration expects shape \[-1,3\] for input 'ARGS"):
        serve(text(dims="dims: 3"), package)


@pytest.mark.slow
def test_compiled_package_without_its_source_checks_itself(package: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with (
        zipfile.ZipFile(package / "1" / "model.pt2") as whole,
        zipfile.ZipFile(tmp_path / "1" / "model.pt2", "w") as part,
    ):
        for name in whole.namelist():
            if not name.endswith(".cpp"):
                part.writestr(name, whole.read(name))
    served = serve(text(dims="dims: -1"), tmp_path)
    assert served(infer(arrays(rows=3)))[0].arrays["RESULT[total]"].shape == (3, 2)
    (response,) = served(infer(arrays(rows=9)))[0].wait()
    assert response.failure is not None and response.failure.code is ErrorCode.INVALID_ARG
    assert "dim value is too large at 0" in response.failure.message
