"""One network on a GPU, beside the bare call of its framework: from and to host memory on both sides.

The rows of frameworks that are not there are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.backends import Call, Row, served

INPUT: Final = (3, 224, 224)
CONFIG: Final = """
    name: "m" backend: "{backend}" max_batch_size: 8
    input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
    output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: 1000 }}
    instance_group {{ kind: KIND_GPU }} {extra}
"""
ROWS: Final = (1, 8)


def rows() -> Iterable[Row]:
    """Return one row for each framework that is there and each batch; none without a GPU."""
    if not torch.cuda.is_available():
        raise ImportError("there is no GPU")
    for count in ROWS:
        yield Row(f"TorchScript on CUDA, {count} rows", partial(of_script, count=count))
        yield Row(f"exported program on CUDA, {count} rows", partial(of_program, count=count))
        yield Row(f"AOTInductor package on CUDA, {count} rows", partial(of_package, count=count))
        if _onnxruntime():
            yield Row(f"ONNX Runtime on CUDA, {count} rows", partial(of_onnx, count=count))
        if find_spec("tensorrt"):
            yield Row(f"TensorRT plan, {count} rows", partial(of_plan, count=count))


def of_script(folder: Path, count: int) -> tuple[Call, Call]:
    """Serve a traced module."""
    jit: Any = torch.jit
    traced = jit.freeze(jit.trace(_network().cuda(), torch.zeros(1, *INPUT, device="cuda")))
    jit.save(traced, str(_version(folder) / "model.pt"))
    return _ours(folder, count, "pytorch"), _bare(traced, count)


def of_program(folder: Path, count: int) -> tuple[Call, Call]:
    """Serve an exported program."""
    path = _version(folder) / "model.pt2"
    torch.export.save(_exported(), path)
    return _ours(folder, count, "pytorch"), _bare(torch.export.load(path).module(), count)


def of_package(folder: Path, count: int) -> tuple[Call, Call]:
    """Serve what AOTInductor compiled."""
    path = str(_version(folder) / "model.pt2")
    torch._inductor.aoti_compile_and_package(_exported(), package_path=path)
    return _ours(folder, count, "pytorch"), _bare(torch._inductor.aoti_load_package(path), count)


def of_onnx(folder: Path, count: int) -> tuple[Call, Call]:
    """Serve an ONNX model; the bare side is `session.run`."""
    import onnxruntime as ort

    path = _onnx_file(folder)
    ours = _ours(folder, count, "onnxruntime")  # first: importing it loads the libraries of CUDA
    session = ort.InferenceSession(str(path), providers=["CUDAExecutionProvider"])
    array = _array(count)
    return ours, lambda: session.run(None, {"INPUT__0": array})


def of_plan(folder: Path, count: int) -> tuple[Call, Call]:
    """Serve an engine built from the ONNX model, beside one on a stream of PyTorch. Not run yet."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as mc

    from backends.base import Model
    from backends.tensorrt.builder import built_plan
    from backends.tensorrt.runtime import deserialise

    cuda: Any = torch.cuda  # not typed
    path = _onnx_file(folder)
    text = CONFIG.format(backend="tensorrt", extra='default_model_filename: "model.onnx"')
    ours = served(text, folder, {"INPUT__0": _array(count)}, kind="GPU")
    device = torch.device("cuda", 0)
    plan = built_plan(Model(text_format.Parse(text, mc.ModelConfig()), 1, folder), path, device)
    runtime, engine = deserialise(plan, device, {})
    context = engine.create_execution_context()
    stream = cuda.Stream()
    context.set_optimization_profile_async(0, stream.cuda_stream)
    tensor = torch.from_numpy(_array(count))

    def call() -> Any:
        with cuda.stream(stream):
            source = tensor.cuda()
            result = torch.empty(count, 1000, device="cuda")
            context.set_input_shape("INPUT__0", tuple(source.shape))
            context.set_tensor_address("INPUT__0", source.data_ptr())
            context.set_tensor_address("OUTPUT__0", result.data_ptr())
            context.execute_async_v3(stream.cuda_stream)
            return result.cpu()

    call.runtime = runtime  # type: ignore[attr-defined]  # it must outlive the engine
    return ours, call


def _onnxruntime() -> bool:
    if not find_spec("onnxruntime"):
        return False
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def _onnx_file(folder: Path) -> Path:
    path = _version(folder) / "model.onnx"
    names: dict[str, Any] = {"input_names": ["INPUT__0"], "output_names": ["OUTPUT__0"]}
    rows_ = {name: {0: "rows"} for name in ("INPUT__0", "OUTPUT__0")}
    torch.onnx.export(
        _network(), (torch.zeros(1, *INPUT),), str(path), dynamic_axes=rows_, dynamo=False, **names
    )
    return path


def _version(folder: Path) -> Path:
    (folder / "1").mkdir(exist_ok=True)
    return folder / "1"


def _ours(folder: Path, count: int, backend: str) -> Call:
    return served(CONFIG.format(backend=backend, extra=""), folder, {"INPUT__0": _array(count)}, kind="GPU")


def _bare(module: Callable[[Any], Any], count: int) -> Call:
    tensor = torch.from_numpy(_array(count))

    def call() -> Any:
        with torch.inference_mode():
            return module(tensor.cuda()).cpu()

    return call


def _array(count: int) -> Any:
    return np.random.default_rng(0).standard_normal((count, *INPUT), dtype=np.float32)


def _exported() -> Any:
    from torch.export.passes import move_to_device_pass

    dimension = {0: torch.export.Dim("rows", min=1, max=8)}
    program = torch.export.export(_network(), (torch.zeros(2, *INPUT),), dynamic_shapes=(dimension,))
    return move_to_device_pass(program, "cuda:0")


def _network() -> Any:
    """Return a convolutional network with random weights, FP32 [n, 3, 224, 224] to [n, 1000]."""
    torch.manual_seed(0)
    layers: list[Any] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256), (256, 512)):
        layers += [torch.nn.Conv2d(inputs, outputs, 3, 2, 1), torch.nn.ReLU()]
        layers += [torch.nn.Conv2d(outputs, outputs, 3, 1, 1), torch.nn.ReLU()]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 1000)
    ).eval()
