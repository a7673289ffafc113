"""Backends and batching strategies of Triton's, built unmodified from their sources and executed.

`TRITON_BACKEND_SOURCES` names a directory with Triton's repositories (core, backend, common, server,
identity_backend, repeat_backend, square_backend) and RapidJSON's (rapidjson). Building takes a minute.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.tensors import Tensor
from backends.base import Instance, Model
from backends.cpp.build import built_library, compiler
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from backends.registry.strategies import find_strategy
from tests.unit.backend_harness import Call, Served, config, infer
from tests.unit.bls_bench import open_bench
from tests.unit.ensembles import Asked, Models, model

SOURCES = Path(os.environ.get("TRITON_BACKEND_SOURCES") or "/nowhere")
pytestmark = pytest.mark.skipif(
    not (SOURCES / "core/include/triton/core/tritonbackend.h").is_file(),
    reason="TRITON_BACKEND_SOURCES names no directory with Triton's sources",
)

HELPERS = (
    *(f"backend/src/backend_{name}.cc" for name in ("common", "input_collector", "memory", "model")),
    *("backend/src/backend_model_instance.cc", "backend/src/backend_output_responder.cc"),
    *(f"common/src/{name}.cc" for name in ("async_work_queue", "error", "thread_pool")),
)
DECOUPLED = "model_transaction_policy { decoupled: true } "
TESTS = "server/src/test"
BLS = "backend/examples/backends/bls/src"
BACKENDS = {
    "identity": "identity_backend/src/identity.cc",
    "repeat": "repeat_backend/src/repeat.cc",
    "square": "square_backend/src/square.cc",
    "minimal": "backend/examples/backends/minimal/src/minimal.cc",
    "recommended": "backend/examples/backends/recommended/src/recommended.cc",
    "sequence": f"{TESTS}/sequence/src/sequence.cc",
    "dyna_sequence": f"{TESTS}/dyna_sequence/src/dyna_sequence.cc",
    "implicit_state": f"{TESTS}/implicit_state/src/implicit_state.cc",
    "bls": " ".join(
        f"backend/examples/backends/bls/src/{name}.cc" for name in ("backend", "bls", "bls_utils")
    ),
    "query": f"{TESTS}/query_backend/src/query.cc",
    "iterative_sequence": f"{TESTS}/iterative_sequence/src/iterative_sequence.cc",
    "distributed_addsub": f"{TESTS}/distributed_addsub/src/distributed_addsub.cc",
}
STRATEGY = "backend/examples/batching_strategies/volume_batching/src/volume_batching.cc"
CUDA = """
enum { cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice };
template <class... A> int cudaMemcpyAsync(A...) { return 0; }
template <class... A> int cudaMemcpy(A...) { return 0; }
template <class... A> int cudaMemset(A...) { return 0; }
template <class... A> int cudaStreamSynchronize(A...) { return 0; }
#define LOG_IF_CUDA_ERROR(X, MSG) (void)(X)
"""
"""What two of the sources name without having asked whether there is CUDA; not called for CPU instances."""


@pytest.fixture(scope="module")
def backend_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backend directory with all of `BACKENDS`, and `strategy.so`."""
    directory = tmp_path_factory.mktemp("backends")
    (directory / "cuda.h").write_text(CUDA)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: _compile(directory, source), HELPERS))
        wanted = {f"{name}/libtriton_{name}.so": (source, objects) for name, source in BACKENDS.items()}
        wanted["strategy.so"] = (STRATEGY, [])
        list(pool.map(lambda item: _link(directory, item[0], *item[1]), wanted.items()))
    return directory


def _command(directory: Path) -> list[str]:
    parts = ("backend", "core", "common", "rapidjson")
    flags = ("-std=c++17", "-O0", "-fPIC", "-DTRITON_ENABLE_METRICS", "-DTRITON_ENABLE_TRACING")
    without_cuda = "-DTRITON_ENABLE_MALI_GPU"  # lets the helpers make instances of KIND_GPU
    return [*compiler(), *flags, without_cuda, *(f"-I{SOURCES / part / 'include'}" for part in parts)]


def _compile(directory: Path, source: str) -> str:
    result = str(directory / f"{Path(source).stem}.o")
    subprocess.run([*_command(directory), "-c", str(SOURCES / source), "-o", result], check=True)
    return result


def _link(directory: Path, name: str, source: str, objects: list[str]) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    sources = [str(SOURCES / each) for each in source.split()]
    parts = ["-include", str(directory / "cuda.h"), "-shared", *sources, *objects]
    subprocess.run(
        [*_command(directory), *parts, str(built_library()), "-o", str(directory / name)], check=True
    )


@pytest.fixture
def load(backend_directory: Path) -> Iterator[Any]:
    """Loads a model of a backend."""
    loaded: list[Served] = []

    def load_one(backend: str, text: str) -> Served:
        served = Served(find_backend(BackendPlace(backend, backend_directory)), config(f'name: "m" {text}'))
        loaded.append(served)
        return served

    yield load_one
    for served in loaded:
        served.close()


def tensors(data_type: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """The inputs and outputs of a configuration; values are their dims."""
    both = (("input", inputs), ("output", outputs))
    return " ".join(
        f'{kind} {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] }}'
        for kind, each in both
        for name, dims in each.items()
    )


def int32(*values: int) -> np.ndarray[Any, Any]:
    return np.array([values], np.int32)


def controls(kinds: Mapping[str, str]) -> str:
    """Control inputs of sequences by name."""
    return " ".join(
        f'control_input {{ name: "{name}"'
        f" control {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }} }}"
        for name, kind in kinds.items()
    )


def test_identity(load: Any) -> None:
    served = load(
        "identity", "max_batch_size: 8 " + tensors("TYPE_FP32", {"INPUT0": "-1"}, {"OUTPUT0": "-1"})
    )
    values = np.random.default_rng(0).random((2, 3000), np.float32)

    calls = served(infer({"INPUT0": values}), infer({"INPUT0": values[:, :3] + 1}))

    assert (calls[0].arrays["OUTPUT0"] == values).all()
    assert (calls[1].arrays["OUTPUT0"] == values[:, :3] + 1).all()
    assert calls[0].responses[0].parameters["param1"] == 42
    ((name, _, kind, metrics),) = (family for family in served.backend.metrics() if "input_byte" in family[0])
    assert (name, kind, metrics[0][1]) == ("input_byte_size_counter", "counter", 24024.0)


def test_repeat(load: Any) -> None:
    inputs = tensors("TYPE_INT32", {"IN": "-1"}, {}) + tensors(
        "TYPE_UINT32", {"DELAY": "-1", "WAIT": "1"}, {}
    )
    outputs = tensors("TYPE_INT32", {}, {"OUT": "1"}) + tensors("TYPE_UINT32", {}, {"IDX": "1"})
    served = load("repeat", f"{DECOUPLED} {inputs} {outputs}")
    delays = np.ones(3, np.uint32)

    (call,) = served(infer({"IN": int32(7, 8, 9)[0], "DELAY": delays, "WAIT": delays[:1]}))

    *responses, last = call.wait()
    assert [[t.array().item() for t in response.outputs] for response in responses] == [
        [7, 0],
        [8, 1],
        [9, 2],
    ]
    assert last.is_end_of_stream


def test_square(load: Any) -> None:
    served = load("square", DECOUPLED + tensors("TYPE_INT32", {"IN": "1"}, {"OUT": "1"}))

    calls = served(infer({"IN": int32(3)[0]}), infer({"IN": int32(50)[0]}))

    for call, count in zip(calls, (3, 50), strict=True):
        *responses, last = call.wait()
        assert [response.outputs[0].array().item() for response in responses] == [count] * count
        assert last.is_end_of_stream


@pytest.mark.parametrize("backend", ["minimal", "recommended"])
def test_examples(load: Any, backend: str) -> None:
    served = load(backend, "max_batch_size: 8 " + tensors("TYPE_INT32", {"IN0": "4"}, {"OUT0": "4"}))

    calls = served(*(infer({"IN0": int32(1, 2, 3, i)}) for i in range(3)))

    assert [call.arrays["OUT0"].tolist() for call in calls] == [[[1, 2, 3, i]] for i in range(3)]


def test_distributed_addsub(load: Any) -> None:
    """A passive instance, which gets no requests, subtracts for the one that gets them."""
    names = {"INPUT0": "-1", "INPUT1": "-1"}, {"OUTPUT0": "-1", "OUTPUT1": "-1"}
    served = load("distributed_addsub", tensors("TYPE_INT32", *names))
    passive = Instance(served.model, "m_1_0_gpu0", "GPU", 0, 1, passive=True)
    served.backend.instance_initialize(passive)

    (call,) = served(infer({"INPUT0": int32(5, 7)[0], "INPUT1": int32(1, 10)[0]}))

    found = {name: array.tolist() for name, array in call.arrays.items()}
    assert found == {"OUTPUT0": [6, 17], "OUTPUT1": [4, -3]}
    served.backend.instance_finalize(passive)


def test_query(load: Any) -> None:
    outputs = tensors("TYPE_UINT8", {}, {"OUTPUT0": "2", "OUTPUT1": "2"})
    served = load("query", tensors("TYPE_UINT8", {"INPUT": "1"}, {}) + outputs)

    (call,) = served(infer({"INPUT": np.zeros(1, np.uint8)}))

    assert {name: array.shape for name, array in call.arrays.items()} == {"OUTPUT0": (2,), "OUTPUT1": (2,)}


def test_sequence(load: Any) -> None:
    text = f"sequence_batching {{ {controls({'START': 'START', 'READY': 'READY'})} }}"
    served = load(
        "sequence", f"max_batch_size: 2 {text} " + tensors("TYPE_INT32", {"INPUT": "1"}, {"OUTPUT": "1"})
    )

    def step(value: int, start: int) -> Any:
        arrays = {"INPUT": int32(value), "START": int32(start), "READY": int32(1)}
        (call,) = served(infer(arrays, sequence_id=5, sequence_start=bool(start)))
        return call.arrays["OUTPUT"].item()

    assert [step(3, 1), step(4, 0), step(5, 0), step(1, 1)] == [3, 7, 12, 1]


def test_dyna_sequence(load: Any) -> None:
    kinds = {"START": "START", "END": "END", "READY": "READY"}
    correlation = (
        'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }'
    )
    text = f"sequence_batching {{ oldest {{ }} {controls(kinds)} {correlation} }}"
    io = tensors("TYPE_INT32", {"INPUT": "1"}, {"OUTPUT": "1"})
    served = load("dyna_sequence", f"max_batch_size: 2 {text} {io}")

    def step(value: int, start: int) -> Any:
        arrays = {"INPUT": int32(value), "START": int32(start), "END": int32(0), "READY": int32(1)}
        arrays["CORRID"] = np.array([[7]], np.uint64)
        (call,) = served(infer(arrays, sequence_id=7, sequence_start=bool(start)))
        return call.arrays["OUTPUT"].item()

    assert [step(3, 1), step(4, 0)] == [3, 7]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (0, "state 'undefined_state' is not a valid state name."),
        (1, "failed to create the state buffer in GPU memory"),  # what it wants to test there
    ],
)
def test_implicit_state(load: Any, case: int, text: str) -> None:
    state = (
        'state { input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ] }'
    )
    kinds = {"START": "START", "READY": "READY", "END": "END"}
    io = tensors("TYPE_INT32", {"INPUT": "1", "TEST_CASE": "1"}, {"OUTPUT": "1"})
    served = load(
        "implicit_state", f"max_batch_size: 0 {io} sequence_batching {{ {controls(kinds)} {state} }}"
    )
    arrays = {"INPUT": 3, "TEST_CASE": case, "START": 0, "READY": 1, "END": 0, "INPUT_STATE": 4}

    (call,) = served(infer({name: int32(value)[0] for name, value in arrays.items()}, sequence_id=3))

    assert call.error.endswith(text)


def test_implicit_state_of_one_buffer(load: Any) -> None:
    """The backend fails a sequence whose states are not where it has written the last."""
    names = 'input_name: "INPUT_STATE" output_name: "OUTPUT_STATE"'
    state = f"state {{ {names} data_type: TYPE_INT32 dims: [ 1 ] use_same_buffer_for_input_output: true }}"
    kinds = {"START": "START", "READY": "READY", "END": "END"}
    io = tensors("TYPE_INT32", {"INPUT": "1", "TEST_CASE": "1"}, {"OUTPUT": "1"})
    served = load("implicit_state", f"{io} sequence_batching {{ {controls(kinds)} {state} }}")
    arrays = {"INPUT": 3, "TEST_CASE": 2, "START": 0, "READY": 1, "END": 0, "INPUT_STATE": 4}

    for _ in range(2):
        (call,) = served(infer({name: int32(value)[0] for name, value in arrays.items()}, sequence_id=3))
        assert not call.arrays  # and no error


def test_iterative_sequence(load: Any) -> None:
    start = controls({"START": "START"})
    io = tensors("TYPE_INT32", {"INPUT": "1"}, {"OUTPUT": "1"})
    text = f"sequence_batching {{ iterative_sequence: true {start} }}"
    served = load("iterative_sequence", f"{DECOUPLED} max_batch_size: 8 {text} {io}")

    call = Call(infer({"INPUT": int32(3), "START": int32(1)}, sequence_id=9, sequence_start=True))
    served.backend.instance_execute(served.instance, [call])

    assert call.rescheduled


def test_bls(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes OUTPUT0 of the one model and OUTPUT1 of the other, which differ here."""
    names = {"INPUT0": "4", "INPUT1": "4"}, {"OUTPUT0": "4", "OUTPUT1": "4"}
    served = load("bls", tensors("TYPE_FP32", *names))
    values = {name: np.full(4, fill, np.float32) for name, fill in (("INPUT0", 5), ("INPUT1", 2))}

    def answer(factor: int) -> Callable[[Asked], None]:
        def respond(asked: Asked) -> None:
            first, second = (tensor.array() for tensor in asked.request.inputs)
            outputs = {"OUTPUT0": first + second, "OUTPUT1": first - second}
            asked.answer(*(Tensor.from_array(name, factor * array) for name, array in outputs.items()))

        return respond

    with open_bench(monkeypatch) as bench:
        both = model("INPUT0 INPUT1", "OUTPUT0 OUTPUT1")
        bench.models.table = Models(addsub_python=both, addsub_onnx=both).table
        bench.answers += [answer(1), answer(10)]
        (call,) = served(infer(values, id="7"))
        assert {name: array.tolist() for name, array in call.arrays.items()} == {
            "OUTPUT0": [7] * 4,
            "OUTPUT1": [30] * 4,
        }
        bench.models.table = Models(addsub_python=both).table
        (call,) = served(infer(values))
        assert call.error == "Failed to send inference requests"


def test_volume_batching(backend_directory: Path, tmp_path: Path) -> None:
    limit = 'parameters { key: "MAX_BATCH_VOLUME_BYTES" value { string_value: "40" } }'
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "batchstrategy.so").write_bytes((backend_directory / "strategy.so").read_bytes())
    strategy = find_strategy(Model(config(f'name: "m" {limit}'), 1, tmp_path / "m"))
    assert strategy is not None
    request = Call(infer({"INPUT0": np.zeros((1, 4), np.float32)}))

    batch = strategy.batch_initialize()

    assert [strategy.include_request(request, batch) for _ in range(3)] == [True, True, False]
    strategy.batch_finalize(batch)
    strategy.batcher_finalize()
