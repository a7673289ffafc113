"""Eager PyTorch models on a GPU."""

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.unit.backend_harness import Served, infer  # noqa: E402
from tests.unit.backends.pytorch.test_backend import AddSub  # noqa: E402
from tests.unit.backends.pytorch.test_eager import CODE, pair, serve, text, write  # noqa: E402

ON_GPU = CODE.replace("assert ", "assert x.is_cuda and y.is_cuda and self.weight.is_cuda and ")
WEIGHTS = {"weight": torch.tensor([10.0, 1.0])}


@pytest.fixture(params=["here", "process"])
def load(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Serve a model in this process, or in one of its own."""
    loaded: list[Served] = []
    interpreter = None if request.param == "here" else Path(sys.executable)

    def load_one(*words: Any, kind: str = "GPU") -> Served:
        loaded.append(serve(*words, kind=kind, interpreter=interpreter))
        return loaded[-1]

    yield load_one
    for served in loaded:
        served.close()


def test_module_with_its_weights(tmp_path: Path, load: Any) -> None:
    served = load(write(tmp_path, ON_GPU, WEIGHTS))
    for _ in range(3):
        for call in served(infer(pair()), infer(pair(2))):
            assert call.arrays["SUM"][-1].tolist() == [80, 8]
            assert call.arrays["DIFFERENCE"][-1].tolist() == [2, 2]


def test_only_the_request_at_fault_fails(tmp_path: Path, load: Any) -> None:
    served = load(write(tmp_path, ON_GPU))
    good, bad = served(infer(pair()), infer(pair(width=3)))
    assert good.arrays["SUM"].tolist() == [[8, 8]]
    assert "must match the size" in bad.error


def test_kind_model_runs_where_its_parameters_are(tmp_path: Path, load: Any) -> None:
    served = load(write(tmp_path, ON_GPU.replace("ones(2)", "ones(2, device='cuda')")), kind="MODEL")
    assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]


def test_torchscript_without_code(tmp_path: Path, load: Any) -> None:
    (tmp_path / "1").mkdir()
    traced = torch.jit.trace(AddSub(), (torch.ones(1, 2), torch.ones(1, 2)))
    traced.save(str(tmp_path / "1" / "model.pt"))
    assert load(tmp_path)(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]


def test_bfloat16(tmp_path: Path, load: Any) -> None:
    code = ON_GPU.replace("(x + y) * self.weight", "((x + y) * self.weight).bfloat16()")
    configuration = text().replace('"SUM" data_type: TYPE_FP32', '"SUM" data_type: TYPE_BF16')
    (call,) = load(write(tmp_path, code), configuration)(infer(pair()))
    assert call.arrays["SUM"].tolist() == [[0x4100, 0x4100]]


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs gcc")
def test_compiled_module(tmp_path: Path, load: Any) -> None:
    code = CODE.replace("assert not self.training and torch.is_inference_mode_enabled()", "")
    served = load(write(tmp_path, code), text("").replace("dims: -1", "dims: 2"))
    for rows in (1, 2, 5):
        assert served(infer(pair(rows)))[0].arrays["SUM"].tolist() == [[8, 8]] * rows


def test_without_a_compiler_it_is_executed_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    served = serve(write(tmp_path, ON_GPU), text(""), kind="GPU")
    try:
        assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]
        assert "no C compiler 'no-such-compiler': 'eager' is executed eagerly" in caplog.text
    finally:
        served.close()


def test_instances_at_the_same_time(tmp_path: Path) -> None:
    """Each thread has the default stream of the GPU: what one computes is not read by another."""
    loaded = [serve(write(tmp_path / str(index), ON_GPU), kind="GPU") for index in range(3)]
    wrong: list[Any] = []

    def work(served: Served, seed: int) -> None:
        for step in range(100):
            array = np.full((1 + step % 8, 2), seed + step, np.float32)
            found = served(infer({"A": array, "B": array}))[0].arrays["SUM"]
            if not (found == 2 * array).all():
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(each, 1000 * seed)) for seed, each in enumerate(loaded)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for served in loaded:
        served.close()
    assert not wrong
