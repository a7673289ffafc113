"""A whole server on a GPU: every framework, CUDA shared memory, metrics of NVML."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorrt")
pytest.importorskip("onnxruntime")

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from app.ingress.metrics.machine import Machine
from tests.gpu import engines
from tests.server import Server
from tests.unit.backends.onnxruntime import test_backend as test_onnxruntime
from tests.unit.backends.pytorch import test_backend as test_torch

KIND = "instance_group { kind: KIND_GPU count: 2 }"
MODELS = {"plan": ("X", "Y"), "onnx": ("I", "O"), "script": ("INPUT__0", "OUTPUT__0")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    engines.write(folder / "plan", engines.doubled, [engines.batches(8)])
    test_onnxruntime.identity(folder / "onnx")
    test_torch.save(test_torch.Same(), folder / "script")
    (folder / "onnx" / "config.pbtxt").write_text(KIND)
    text = test_torch.one("TYPE_FP32", "dims: 16", extra=KIND).replace('name: "x"', "")
    (folder / "script" / "config.pbtxt").write_text(text)
    arguments = [f"--model-repository={folder}", "--allow-client-shm=true"]
    server = Server(arguments, tmp_path_factory.mktemp("log") / "log").start()
    yield server
    server.stop()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> tuple[Any, Any]:
    """The client's module and a client."""
    if request.param == "http":
        return httpclient, httpclient.InferenceServerClient(server.http_url)
    return grpcclient, grpcclient.InferenceServerClient(server.grpc_url)


@pytest.mark.parametrize("model", MODELS)
def test_each_framework(model: str, client: tuple[Any, Any]) -> None:
    module, connection = client
    name, output = MODELS[model]
    array = np.arange(48, dtype=np.float32).reshape(3, 16)
    tensor = module.InferInput(name, [3, 16], "FP32")
    tensor.set_data_from_numpy(array)
    result = connection.infer(model, [tensor]).as_numpy(output)
    assert (result == (2 * array if model == "plan" else array)).all()


def test_cuda_shared_memory(client: tuple[Any, Any]) -> None:
    memory = pytest.importorskip("tritonclient.utils.cuda_shared_memory")
    module, connection = client
    array = np.arange(32, dtype=np.float32).reshape(2, 16)
    regions = {name: memory.create_shared_memory_region(name, array.nbytes, 0) for name in ("in", "out")}
    memory.set_shared_memory_region(regions["in"], [array])
    try:
        for name, region in regions.items():
            connection.register_cuda_shared_memory(name, memory.get_raw_handle(region), 0, array.nbytes)
        tensor = module.InferInput("X", [2, 16], "FP32")
        tensor.set_shared_memory("in", array.nbytes)
        output = module.InferRequestedOutput("Y")
        output.set_shared_memory("out", array.nbytes)
        connection.infer("plan", [tensor], outputs=[output])
        assert (memory.get_contents_as_numpy(regions["out"], np.float32, [2, 16]) == 2 * array).all()
    finally:
        connection.unregister_cuda_shared_memory()
        for region in regions.values():
            memory.destroy_shared_memory_region(region)


def test_metrics_of_the_gpu(server: Server) -> None:
    status, text = server.get("/metrics", port=server.metrics_port)
    samples = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line.startswith("nv_gpu_"))
    total, used = (
        next(
            float(value) for name, value in samples.items() if name.startswith(f"nv_gpu_memory_{part}_bytes")
        )
        for part in ("total", "used")
    )
    assert status == 200
    assert 0 < used < total
    assert all("gpu_uuid=" in name for name in samples)


def test_nvml_is_there() -> None:
    pytest.importorskip("pynvml")
    families = {family.name: family for family in Machine(False, True, 1000).read()}
    assert families["nv_gpu_memory_total_bytes"].samples[0].value > 1 << 30
    assert families["nv_energy_consumption"].type == "counter"


def test_plans_are_found_and_completed(server: Server, tmp_path: Path) -> None:
    config = httpclient.InferenceServerClient(server.http_url).get_model_config("plan")
    assert (config["backend"], config["platform"], config["max_batch_size"]) == (
        "tensorrt",
        "tensorrt_plan",
        8,
    )
    assert config["instance_group"][0]["kind"] == "KIND_GPU"
