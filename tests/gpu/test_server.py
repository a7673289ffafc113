"""A whole server on a GPU: every framework, CUDA shared memory, metrics of NVML."""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tritonclient.grpc as grpcclient  # noqa: E402
import tritonclient.http as httpclient  # noqa: E402

from app.ingress.metrics.machine import Machine  # noqa: E402
from nereid_client.tools.perf.command.run import main as perf  # noqa: E402
from tests.gpu import engines  # noqa: E402
from tests.server import WITH_ENGINE, EngineServer, Server  # noqa: E402
from tests.unit.backends.pytorch import test_backend as test_torch  # noqa: E402

KIND = "instance_group { kind: KIND_GPU count: 2 }"


def script(folder: Path) -> None:
    """Y = X by TorchScript."""
    test_torch.save(test_torch.Same(), folder)
    text = test_torch.one("TYPE_FP32", "dims: 16", extra=KIND).replace('name: "x"', "")
    (folder / "config.pbtxt").write_text(text)


def exported() -> Any:
    """Y = X + X as an exported program for the GPU."""
    import torch
    from torch.export.passes import move_to_device_pass

    class Doubled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + x

    rows = {0: torch.export.Dim("rows", min=1, max=8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's exporter warns of its own code
        program = torch.export.export(Doubled().eval(), (torch.zeros(2, 16),), dynamic_shapes=(rows,))
        return move_to_device_pass(program, "cuda:0")


def program(folder: Path) -> None:
    """Y = X + X by an exported program."""
    script(folder)
    (folder / "1" / "model.pt").unlink()
    torch.export.save(exported(), folder / "1" / "model.pt2")


def package(folder: Path) -> None:
    """Y = X + X by an AOTInductor package."""
    script(folder)
    (folder / "1" / "model.pt").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(exported(), package_path=str(folder / "1" / "model.pt2"))


def eager(folder: Path) -> None:
    """Y = X + X by the code of a module."""
    (folder / "1").mkdir(parents=True)
    code = "import torch\nclass Doubled(torch.nn.Module):\n    def forward(self, x): return x + x\n"
    (folder / "1" / "model.py").write_text(code)
    text = test_torch.one("TYPE_FP32", "dims: 16", extra=KIND).replace('name: "x"', "")
    parameter = 'key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" }'
    (folder / "config.pbtxt").write_text(f'{text} runtime: "model.py" parameters {{ {parameter} }}')


PYTHON = """
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))

    def execute(self, requests):
        return [self.answer(each) for each in requests]

    def answer(self, request):
        x = torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, "X")).to(self.device)
        inputs = [pb_utils.Tensor.from_dlpack("INPUT__0", x)]
        assert not inputs[0].is_cpu()
        names = ["OUTPUT__0"]
        asked = pb_utils.InferenceRequest(model_name="script", requested_output_names=names, inputs=inputs)
        response = asked.exec()
        assert not response.has_error(), response.error().message()
        same = torch.from_dlpack(pb_utils.get_output_tensor_by_name(response, "OUTPUT__0"))
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", x + same.to(self.device))])
"""


def python(folder: Path) -> None:
    """Y = X + X on the GPU by a Python model, which has X also from the model `script`."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(PYTHON)
    tensors = 'input { name: "X" TENSOR } output { name: "Y" TENSOR }'
    text = tensors.replace("TENSOR", "data_type: TYPE_FP32 dims: 16")
    (folder / "config.pbtxt").write_text(f'backend: "python" max_batch_size: 8 {text} {KIND}')


def onnx(folder: Path) -> None:
    """Y = X by ONNX Runtime."""
    from tests.unit.backends.onnxruntime import test_backend as test_onnxruntime

    test_onnxruntime.identity(folder)
    (folder / "config.pbtxt").write_text(KIND)


def plan(folder: Path) -> None:
    """Y = X + X by TensorRT."""
    engines.write(folder, engines.doubled, [engines.batches(8)])


class Kind(NamedTuple):
    """A model of a framework: what writes it, what it needs, its tensors, and the factor from X to Y."""

    write: Callable[[Path], None]
    needs: Callable[[], bool]
    names: tuple[str, str]
    factor: int


def has_tensorrt() -> bool:
    return find_spec("tensorrt") is not None


def has_onnxruntime() -> bool:
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def always() -> bool:
    return True


def own_process() -> bool:
    """Whether each model has a process: beside other models PyTorch's loader of packages crashed on a GPU."""
    return not WITH_ENGINE


BY_POSITION = ("INPUT__0", "OUTPUT__0")
MODELS = {
    "script": Kind(script, always, BY_POSITION, 1),
    "program": Kind(program, always, BY_POSITION, 2),
    "package": Kind(package, own_process, BY_POSITION, 2),
    "eager": Kind(eager, always, BY_POSITION, 2),
    "python": Kind(python, always, ("X", "Y"), 2),
    "onnx": Kind(onnx, has_onnxruntime, ("I", "O"), 1),
    "plan": Kind(plan, has_tensorrt, ("X", "Y"), 2),
}


def present(model: str) -> Kind:
    """The kind of a model; the test is skipped where its framework is not."""
    kind = MODELS[model]
    if not kind.needs():
        pytest.skip(f"what '{model}' needs is not there")
    return kind


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, kind in MODELS.items():
        if kind.needs():
            kind.write(folder / name)
    arguments = [f"--model-repository={folder}", "--allow-client-shm=true"]
    log = tmp_path_factory.mktemp("log") / "log"
    server = (EngineServer if WITH_ENGINE else Server)(arguments, log).start()
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
    kind = present(model)
    name, output = kind.names
    array = np.arange(48, dtype=np.float32).reshape(3, 16)
    tensor = module.InferInput(name, [3, 16], "FP32")
    tensor.set_data_from_numpy(array)
    result = connection.infer(model, [tensor]).as_numpy(output)
    assert (result == kind.factor * array).all()


@pytest.mark.parametrize("model", MODELS)
def test_cuda_shared_memory(model: str, client: tuple[Any, Any]) -> None:
    kind = present(model)
    memory = pytest.importorskip("tritonclient.utils.cuda_shared_memory")
    module, connection = client
    array = np.arange(32, dtype=np.float32).reshape(2, 16)
    regions = {name: memory.create_shared_memory_region(name, array.nbytes, 0) for name in ("in", "out")}
    memory.set_shared_memory_region(regions["in"], [array])
    try:
        for name, region in regions.items():
            connection.register_cuda_shared_memory(name, memory.get_raw_handle(region), 0, array.nbytes)
        tensor = module.InferInput(kind.names[0], [2, 16], "FP32")
        tensor.set_shared_memory("in", array.nbytes)
        output = module.InferRequestedOutput(kind.names[1])
        output.set_shared_memory("out", array.nbytes)
        connection.infer(model, [tensor], outputs=[output])
        answer = memory.get_contents_as_numpy(regions["out"], np.float32, [2, 16])
        assert (answer == kind.factor * array).all()
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


def test_memory_of_a_process_on_the_gpu() -> None:
    """Rollouts and models on demand compare this with what is free, before a further replica starts."""
    pytest.importorskip("pynvml")
    from deployments.replica.gpus import gpu_memory

    block = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    memory = gpu_memory({os.getpid()})[0]
    assert memory.used >= block.nbytes
    assert 0 < memory.free < torch.cuda.get_device_properties(0).total_memory - block.nbytes
    assert gpu_memory({1 << 30}) == {}


def test_plans_are_found_and_completed(server: Server) -> None:
    present("plan")
    config = httpclient.InferenceServerClient(server.http_url).get_model_config("plan")
    assert (config["backend"], config["platform"], config["max_batch_size"]) == (
        "tensorrt",
        "tensorrt_plan",
        8,
    )
    assert config["instance_group"][0]["kind"] == "KIND_GPU"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_over_cuda_shared_memory(
    protocol: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
    words = ("-m", "script", "-u", url, "--shared-memory", "cuda", "--concurrency", "2", "--duration", "0.5")
    assert perf([*words, "--json"]) == 0
    (level,) = json.loads(capsys.readouterr().out)["levels"]
    assert level["failed"] == 0 and level["requests"] > 5
