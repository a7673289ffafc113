"""Exported programs and AOTInductor packages on a GPU."""

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.backend_harness import infer  # noqa: E402
from tests.unit.backends.pytorch import programs  # noqa: E402
from tests.unit.backends.pytorch.programs import ANSWER, OUTPUTS, arrays, serve, text  # noqa: E402


def answers(folder: Path, **options: Any) -> None:
    served = serve(text(), folder, **options)
    for _ in range(2):
        for call in served(infer(arrays(rows=1)), infer(arrays(rows=2))):
            assert [call.arrays[name][-1, 0] for name in OUTPUTS] == list(ANSWER)


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    """Ignore what PyTorch's exporters and compilers warn of in their own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_program_of_a_cpu_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    torch.export.save(programs.export(), tmp_path / "1" / "model.pt2")
    answers(tmp_path, kind="GPU")


def test_package_for_the_gpu(tmp_path: Path) -> None:
    from torch.export.passes import move_to_device_pass

    (tmp_path / "1").mkdir()
    moved = move_to_device_pass(programs.export(), "cuda:0")
    torch._inductor.aoti_compile_and_package(moved, package_path=str(tmp_path / "1" / "model.pt2"))
    answers(tmp_path, kind="GPU")
