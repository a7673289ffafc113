"""Tensors of Python models and of the in-process API in a GPU's memory, and with other frameworks."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import triton_python_backend_utils as pb_utils  # noqa: E402

import nereid.inprocess as tritonserver  # noqa: E402
from nereid.inprocess import MemoryType  # noqa: E402
from tests.unit.nereid.engine.repositories import add_model  # noqa: E402

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def made(framework: str) -> Any:
    """VALUES on the GPU, by a framework; skipped where it is missing."""
    if framework == "torch":
        return torch.tensor(VALUES, device="cuda")
    if framework == "cupy":
        return pytest.importorskip("cupy").asarray(VALUES)
    jax = pytest.importorskip("jax")
    return jax.device_put(VALUES, jax.devices("gpu")[0])


def read(framework: str, tensor: Any) -> Any:
    """Return what a framework reads by DLPack, as an array of numpy; it has to be on the GPU there."""
    if framework == "torch":
        found = torch.from_dlpack(tensor)
        assert found.is_cuda
        return found.cpu().numpy()
    if framework == "cupy":
        return pytest.importorskip("cupy").asnumpy(pytest.importorskip("cupy").from_dlpack(tensor))
    jax = pytest.importorskip("jax")
    found = jax.dlpack.from_dlpack(tensor)
    assert next(iter(found.devices())).platform == "gpu"
    return np.asarray(found)


FRAMEWORKS = pytest.mark.parametrize("framework", ["torch", "cupy", "jax"])


@FRAMEWORKS
def test_tensors_of_models(framework: str) -> None:
    tensor = pb_utils.Tensor.from_dlpack("X", made(framework))
    assert (tensor.is_cpu(), tensor.shape(), tensor.triton_dtype()) == (False, [2, 3], 11)
    assert tensor.__dlpack_device__() == (2, 0)
    with pytest.raises(pb_utils.TritonModelException, match="Tensor is stored in GPU"):
        tensor.as_numpy()
    assert (read(framework, tensor) == VALUES).all()
    again = pb_utils.Tensor.from_dlpack("Y", tensor)
    assert again.name() == "Y" and not again.is_cpu()
    assert (again._to_wire().array() == VALUES).all()


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_bare_capsules(framework: str) -> None:
    given = made(framework)
    capsule = torch.utils.dlpack.to_dlpack(given) if framework == "torch" else given.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack("X", capsule)
    assert not tensor.is_cpu()
    back = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
    assert back.is_cuda and (back.cpu().numpy() == VALUES).all()


def test_bfloat16() -> None:
    tensor = pb_utils.Tensor.from_dlpack("X", torch.tensor([1.0, -2.0], dtype=torch.bfloat16, device="cuda"))
    assert tensor.triton_dtype() == 14
    wire = tensor._to_wire()
    assert (wire.datatype, wire.array().tolist()) == ("BF16", [0x3F80, 0xC000])


def test_what_is_not_contiguous_is_refused() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="DLPack tensor is not contiguous"):
        pb_utils.Tensor.from_dlpack("X", torch.zeros(2, 3, device="cuda").T)


@FRAMEWORKS
def test_tensors_of_the_in_process_api(framework: str) -> None:
    tensor = tritonserver.Tensor.from_dlpack(made(framework))
    assert (tensor.memory_type, tensor.memory_type_id, tensor.size) == (MemoryType.GPU, 0, VALUES.nbytes)
    assert tensor.data_ptr and (read(framework, tensor) == VALUES).all()
    host = tensor.to_host()
    assert host.memory_type is MemoryType.CPU and (np.from_dlpack(host) == VALUES).all()
    back = host.to_device("gpu:0")
    assert back.memory_type is MemoryType.GPU and back.to_device("gpu") is back
    assert (read(framework, back) == VALUES).all()
    with pytest.raises(tritonserver.UnsupportedError, match="Conversion to"):
        host.to_device(f"gpu:{torch.cuda.device_count()}")


@FRAMEWORKS
def test_inputs_on_the_gpu(framework: str, tmp_path: Path) -> None:
    add_model(tmp_path, "double", config=CONFIG)
    with tritonserver.Server(model_repository=str(tmp_path)).start(wait_until_ready=True) as server:
        model = server.model("double")
        (response,) = model.infer(inputs={"IN": made(framework)})
        assert (np.from_dlpack(response.outputs["OUT"]) == 2 * VALUES).all()
        assert (read(framework, response.outputs["OUT"].to_device("gpu")) == 2 * VALUES).all()
        (response,) = model.infer(inputs={"IN": made(framework)}, output_memory_type="gpu")
        output = response.outputs["OUT"]
        assert output.memory_type is MemoryType.GPU and (read(framework, output) == 2 * VALUES).all()


CONFIG = """
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
