"""BF16 tensors of Python models, where torch is not installed and where it is."""

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.core.tensors import Tensor as WireTensor
from backends.python.api import pb_utils
from backends.python.api.dlpack import Capsule, bfloat16_capsule, read_bfloat16
from backends.python.api.tensor import received_tensor

VALUES = np.array([[0.0, -1.5, np.inf], [3.0e38, 1.0, -0.0]], ml_dtypes.bfloat16)
WIRE = WireTensor("T", "BF16", (2, 3), VALUES.tobytes())


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.utils.dlpack", None)


def same(wire: WireTensor) -> bool:
    found = (wire.name, wire.datatype, wire.shape, bytes(wire.data))
    return found == (WIRE.name, WIRE.datatype, WIRE.shape, WIRE.data)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("bare", [True, False], ids=["capsule", "object"])
def test_dlpack_there_and_back(bare: bool) -> None:
    received = received_tensor(WIRE)
    capsule = received.to_dlpack()
    read = pb_utils.Tensor.from_dlpack("T", capsule if bare else Capsule(capsule))
    del received, capsule
    assert (read.triton_dtype(), read.shape(), read.is_cpu()) == (14, [2, 3], True)
    assert same(read._to_wire())
    with pytest.raises(pb_utils.TritonModelException, match="tensor dtype is bf16 and cannot be converted"):
        read.as_numpy()


@pytest.mark.usefixtures("without_torch")
def test_arrays_of_ml_dtypes_are_outputs() -> None:
    tensor = pb_utils.Tensor("T", VALUES)
    assert (tensor.triton_dtype(), tensor.shape()) == (14, [2, 3])
    assert tensor.as_numpy() is VALUES
    assert same(tensor._to_wire()) and same(tensor._to_wire("BF16"))
    assert same(pb_utils.Tensor.from_dlpack("T", tensor.to_dlpack())._to_wire())


@pytest.mark.usefixtures("without_torch")
def test_rows_of_a_larger_array_are_outputs() -> None:
    wire = pb_utils.Tensor("T", np.repeat(VALUES, 2, 0)[::2])._to_wire()
    assert same(wire)


@pytest.mark.parametrize("array", [np.zeros(2, np.uint16), np.zeros(2, np.float32)])
def test_other_types_are_left_alone(array: Any) -> None:
    capsule = array.__dlpack__()
    assert read_bfloat16(capsule) is None
    assert np.from_dlpack(Capsule(capsule)).dtype == array.dtype


def test_what_is_no_capsule_is_left_alone() -> None:
    assert read_bfloat16(5) is None
    capsule = bfloat16_capsule(np.zeros(2, np.uint16))
    assert read_bfloat16(capsule) is not None
    assert read_bfloat16(capsule) is None, "it was read"


def test_torch_reads_what_was_written_without_it() -> None:
    torch = pytest.importorskip("torch")
    found = torch.from_dlpack(received_tensor(WIRE))
    assert found.dtype == torch.bfloat16
    assert np.array_equal(found.float().numpy(), VALUES.astype(np.float32))


def test_a_capsule_of_torch_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    source = torch.from_numpy(VALUES.view(np.int16).copy()).view(torch.bfloat16)
    versioned = source.__dlpack__(max_version=(1, 0))
    plain = torch.utils.dlpack.to_dlpack(source)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.utils.dlpack", None)
    for capsule in (plain, versioned):
        assert same(pb_utils.Tensor.from_dlpack("T", capsule)._to_wire())
