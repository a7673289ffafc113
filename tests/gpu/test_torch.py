"""TorchScript models on a GPU."""

import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from app.core.tensors import Tensor  # noqa: E402
from backends.base import Instance  # noqa: E402
from tests.unit.backend_harness import Call, infer  # noqa: E402
from tests.unit.backends.pytorch.test_backend import INDEXED, AddSub, Keeps, Same, one, save, serve  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("pinned", ["true", "false"])
def test_batches(pinned: str, tmp_path: Path) -> None:
    text = f"input_pinned_memory {{ enable: {pinned} }} output_pinned_memory {{ enable: {pinned} }}"
    served = serve(INDEXED + f"optimization {{ {text} }}", save(AddSub(), tmp_path), kind="GPU")
    for counts in ((1,), (3, 2), (8,), (2,)):
        arrays = [np.full((count, 2), 5 * place + count, np.float32) for place, count in enumerate(counts)]
        calls = served(*(infer({"INPUT__0": array, "INPUT__1": 2 * array}) for array in arrays))
        for array, call in zip(arrays, calls, strict=True):
            assert (call.arrays["OUTPUT__0"] == 3 * array).all()
            assert (call.arrays["OUTPUT__1"] == -array).all()


def test_inputs_and_outputs_are_page_locked(tmp_path: Path) -> None:
    served = serve(one("TYPE_FP32"), save(Same(), tmp_path), kind="GPU")
    gpu = served.instance.state.gpu
    assert gpu.stage("INPUT__0", np.ones((1, 2), np.float32)).is_pinned()
    with gpu.current():
        host = gpu.download(torch.ones(3, device=gpu.device))
        gpu.wait()
    assert host.is_pinned()
    assert host.tolist() == [1, 1, 1]


def test_results_outlive_the_next_execution(tmp_path: Path) -> None:
    served = serve(one("TYPE_FP32"), save(Keeps(), tmp_path), kind="GPU")
    calls = [served(infer({"INPUT__0": np.full((1, 2), value, np.float32)}))[0] for value in (1, 2, 3)]
    assert [call.arrays["OUTPUT__0"].tolist() for call in calls] == [[[1, 1]], [[2, 2]], [[3, 3]]]


def test_bfloat16(tmp_path: Path) -> None:
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    served = serve(one("TYPE_BF16"), save(Same(), tmp_path), kind="GPU")
    (call,) = served(infer({"INPUT__0": Tensor("INPUT__0", "BF16", bits.shape, bits.tobytes())}))
    assert call.arrays["OUTPUT__0"].tolist() == bits.tolist()


def test_instances_have_streams_of_their_own(tmp_path: Path) -> None:
    served = serve(INDEXED, save(AddSub(), tmp_path), kind="GPU")
    others = [Instance(served.model, f"x_0_{index}", "GPU") for index in range(1, 4)]
    for instance in others:
        served.backend.instance_initialize(instance)
    assert len({one.state.gpu.stream for one in (served.instance, *others)}) == 4
    wrong: list[int] = []

    def work(instance: Instance, seed: int) -> None:
        for step in range(100):
            array = np.full((1 + step % 8, 2), seed + step, np.float32)
            call = Call(infer({"INPUT__0": array, "INPUT__1": array}))
            served.backend.instance_execute(instance, [call])
            if not (call.arrays["OUTPUT__0"] == 2 * array).all():
                wrong.append(step)

    threads = [threading.Thread(target=work, args=(one, 1000 * seed)) for seed, one in enumerate(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
