"""The tensorrt backend over a stand-in for TensorRT and for the GPU; `tests/gpu` has the real ones."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from app.core.errors import ErrorCode, InferError  # noqa: E402
from app.core.installed.installation import install_command  # noqa: E402
from backends.base import Instance, Model, SecondaryDevice  # noqa: E402
from backends.registry.loading import find_backend  # noqa: E402
from backends.registry.place import BackendPlace  # noqa: E402
from tests.unit.backend_harness import Served, config, infer  # noqa: E402
from tests.unit.backends.host_device import HostDevice  # noqa: E402
from tests.unit.backends.tensorrt import fake_tensorrt as trt  # noqa: E402
from tests.unit.backends.tensorrt.conftest import OF_TENSORRT  # noqa: E402

X3 = """
    name: "m" backend: "tensorrt" max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_FP32 dims: 3 }
"""
STRATEGY = 'parameters {{ key: "execution_context_allocation_strategy" value {{ string_value: "{}" }} }}'
GRAPHS = X3 + "optimization { cuda { graphs: true %s } }"

Serve = Callable[..., Served]


def plan(folder: Path, engine: trt.ICudaEngine, name: str = "model.plan") -> Path:
    """Write a plan that the stand-in reads as this engine."""
    data = f"engine {len(trt.Runtime.engines)}".encode()
    trt.Runtime.engines[data] = engine
    (folder / "1").mkdir(exist_ok=True)
    (folder / "1" / name).write_bytes(data)
    return folder


@pytest.fixture
def serve(backend: Any, tmp_path: Path) -> Serve:
    def load(engine: trt.ICudaEngine | None = None, text: str = X3, **options: Any) -> Served:
        plan(tmp_path, engine or trt.add_one())
        return Served(backend.TensorRtBackend, config(text), tmp_path, kind="GPU", **options)

    return load


def rows(count: int, start: int = 1) -> Any:
    return np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)


def test_a_batch_is_merged_executed_once_and_split(serve: Serve) -> None:
    engine = trt.add_one()
    served = serve(engine)
    one, two = served(infer({"X": rows(2)}), infer({"X": rows(1, 50)}))
    assert (one.arrays["Y"] == rows(2) + 1).all()
    assert (two.arrays["Y"] == rows(1, 50) + 1).all()
    (context,) = engine.contexts
    assert context.executions == 1


def test_instances_of_a_device_share_its_engine(serve: Serve) -> None:
    engine = trt.add_one()
    served = serve(engine)
    served.backend.instance_initialize(Instance(served.model, "m_0_1", "GPU"))
    assert (trt.Runtime.read, len(engine.contexts)) == (1, 2)
    served.backend.instance_initialize(Instance(served.model, "m_0_2", "GPU", device_id=1))
    assert trt.Runtime.read == 2


def test_an_engine_for_each_dla_core(serve: Serve) -> None:
    served = serve()
    for core in (1, 1, -1):
        devices = [SecondaryDevice("KIND_NVDLA", core)]
        instance = Instance(served.model, "m_1_0", "GPU", secondary_devices=devices)
        served.backend.instance_initialize(instance)
    assert trt.Runtime.cores == [-1, 1]
    instance = Instance(served.model, "m_2_0", "GPU", secondary_devices=[SecondaryDevice("KIND_NVDLA", 2)])
    with pytest.raises(InferError, match="with DLA Core ID: 2, available number of DLA cores: 2"):
        served.backend.instance_initialize(instance)


def test_each_profile_has_a_context_and_the_nearest_one_executes(serve: Serve, backend: Any) -> None:
    engine = trt.add_one(best=2, high=8, profiles=3)
    served = serve(engine, X3.replace("max_batch_size: 8", "max_batch_size: 32"))
    instance = Instance(served.model, "m_1_0", "GPU")
    instance.profiles = ("0", "2")
    engine.contexts.clear()
    served.backend.instance_initialize(instance)
    served.instance = instance
    for count in (1, 20, 9):
        assert (served(infer({"X": rows(count)}))[0].arrays["Y"] == rows(count) + 1).all()
    assert [(context.profile, context.executions) for context in engine.contexts] == [(0, 1), (2, 2)]


def test_graphs_execute_the_batches_they_were_recorded_for(serve: Serve) -> None:
    engine = trt.add_one()
    served = serve(engine, GRAPHS % "graph_spec { batch_size: 2 } graph_spec { batch_size: 4 }")
    device = served.instance.state.buffers.device
    assert (device.recorded, len(engine.contexts)) == (2, 3)
    for count, replayed in ((2, 1), (3, 1), (4, 2), (1, 2), (2, 3)):
        assert (served(infer({"X": rows(count, count)}))[0].arrays["Y"] == rows(count, count) + 1).all()
        assert device.replayed == replayed


def test_a_graph_with_a_lower_bound_executes_padded(serve: Serve) -> None:
    served = serve(text=GRAPHS % "graph_spec { batch_size: 4 graph_lower_bound { batch_size: 2 } }")
    device = served.instance.state.buffers.device
    for count, replayed in ((3, 1), (2, 2), (1, 2)):
        (call,) = served(infer({"X": rows(count, count)}))
        assert call.arrays["Y"].shape == (count, 3)
        assert (call.arrays["Y"] == rows(count, count) + 1).all()
        assert device.replayed == replayed


def test_a_graph_that_cannot_be_recorded_leaves_out_the_larger_ones(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def record(self: Any, enqueue: Any) -> Any:
        self.recorded += 1
        if self.recorded == 3:
            raise RuntimeError("operation not permitted when stream is capturing")
        return enqueue

    monkeypatch.setattr(HostDevice, "record", record)
    served = serve(text=GRAPHS % "")
    assert served.instance.state.buffers.device.recorded == 3
    assert "unable to record CUDA graph for m_0_0: operation not permitted" in caplog.text
    assert (served(infer({"X": rows(6)}))[0].arrays["Y"] == rows(6) + 1).all()


def test_a_failed_execution_fails_its_requests_only(serve: Serve) -> None:
    engine = trt.add_one()
    served = serve(engine)
    engine.contexts[0].fails = True
    (call,) = served(infer({"X": rows(1)}))
    assert call.error.startswith("failed to run TensorRT inference: ")
    engine.contexts[0].fails = False
    assert served(infer({"X": rows(1)}))[0].arrays["Y"].shape == (1, 3)


def test_the_file_may_depend_on_the_compute_capability(backend: Any, tmp_path: Path) -> None:
    plan(tmp_path, trt.add_one(high=2))
    plan(tmp_path, trt.add_one(high=4), "hopper.plan")
    text = 'name: "m" instance_group { name: "m_0" kind: KIND_GPU gpus: 0 }'
    text += 'cc_model_filenames { key: "%s" value: "%s" }'
    largest = {
        capability: backend.TensorRtBackend.auto_complete(
            Model(config(text % (capability, "hopper.plan")), 1, tmp_path)
        ).max_batch_size
        for capability in ("8.0", "9.0")
    }
    assert largest == {"8.0": 2, "9.0": 4}
    with pytest.raises(InferError, match="escapes the directory"):
        backend.TensorRtBackend.auto_complete(Model(config(text % ("9.0", "../x.plan")), 1, tmp_path))


def test_only_gpu_instances(backend: Any, tmp_path: Path) -> None:
    plan(tmp_path, trt.add_one())
    text = "unable to load model 'm', TensorRT backend supports only GPU device"
    with pytest.raises(InferError) as caught:
        Served(backend.TensorRtBackend, config(X3), tmp_path)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)
    with pytest.raises(InferError, match=text):
        cpu = config('name: "m" instance_group { name: "m_0" kind: KIND_CPU }')
        backend.TensorRtBackend.auto_complete(Model(cpu, 1, tmp_path))


def test_a_missing_file_and_one_that_is_no_engine(backend: Any, tmp_path: Path) -> None:
    with pytest.raises(InferError, match="unable to find") as caught:
        Served(backend.TensorRtBackend, config(X3), tmp_path, kind="GPU")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.plan").write_bytes(b"junk")
    with pytest.raises(InferError) as caught:
        Served(backend.TensorRtBackend, config(X3), tmp_path, kind="GPU")
    assert caught.value.message == "unable to create TensorRT engine: magicTag does not match"


@pytest.mark.parametrize(("strategy", "owns"), [("STATIC", False), ("ON_PROFILE_CHANGE", True)])
def test_temporary_memory_is_that_of_the_strategy(strategy: str, owns: bool, serve: Serve) -> None:
    engine = trt.add_one()
    served = serve(engine, X3 + STRATEGY.format(strategy))
    assert (served(infer({"X": rows(2)}))[0].arrays["Y"] == rows(2) + 1).all()
    assert [context.owns_memory for context in engine.contexts] == [owns]


def test_unknown_strategy(serve: Serve) -> None:
    with pytest.raises(InferError) as caught:
        serve(text=X3 + STRATEGY.format("DYNAMIC"))
    assert caught.value.message == (
        "Invalid value for 'execution_context_allocation_strategy': 'DYNAMIC' for model instance 'm_0_0'."
        " Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'"
    )


@pytest.mark.parametrize(("value", "allowed"), [("true", True), ("false", False), ("", False)])
def test_host_code_of_a_plan_must_be_allowed(value: str, allowed: bool, serve: Serve) -> None:
    serve(settings={"version-compatible": value})
    assert trt.Runtime.host_code == [allowed]


def test_plugins_are_loaded(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    serve(settings={"plugins": "libc.so.6;libm.so.6"})
    assert "loaded TensorRT plugins of 'libm.so.6'" in caplog.messages
    with pytest.raises(InferError, match="unable to load TensorRT plugin library '/nowhere"):
        serve(settings={"plugins": "/nowhere.so"})


@pytest.mark.parametrize(("module", "title"), [("tensorrt", "TensorRT"), ("torch", "PyTorch")])
def test_missing_packages_name_the_extra(module: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setitem(sys.modules, module, None)
    for name in OF_TENSORRT:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InferError) as caught:
        find_backend(BackendPlace("tensorrt"))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.message == (
        f"backend 'tensorrt' needs {title}, which is not installed; install the extra:"
        f" {install_command('gpu')}"
    )
