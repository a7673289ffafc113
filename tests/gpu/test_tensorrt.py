"""Real engines on a real GPU."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.registry.configuration import normalise
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace

pytest.importorskip("tensorrt")

from app.core.errors import InferError
from backends.base import Instance, Model
from tests.gpu import engines
from tests.unit.backend_harness import Served, config, infer

GRAPHS = "optimization {{ cuda {{ graphs: true busy_wait_events: true {} }} }}"


def serve(folder: Path, text: str = "") -> Served:
    """Load with a configuration that the engine completes."""
    backend = find_backend(BackendPlace("tensorrt"))
    declared = normalise(config(f'name: "m" backend: "tensorrt" platform: "tensorrt_plan" {text}'), (0,))
    complete = normalise(backend.auto_complete(Model(declared, 1, folder)), (0,))
    return Served(backend, complete, folder, kind="GPU")


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    return engines.write(tmp_path, engines.doubled, [engines.batches(8)])


def rows(count: int, start: int = 0) -> Any:
    return np.arange(start, start + 16 * count, dtype=np.float32).reshape(count, 16)


def holds(served: Served, *counts: int) -> None:
    """A batch of requests of so many rows is answered right."""
    arrays = [rows(count, 100 * position) for position, count in enumerate(counts)]
    calls = served(*(infer({"X": array}) for array in arrays))
    for array, call in zip(arrays, calls, strict=True):
        assert (call.arrays["Y"] == 2 * array).all()


def test_the_engine_completes_the_configuration(doubled: Path) -> None:
    complete = serve(doubled).model.config
    assert (complete.max_batch_size, complete.HasField("dynamic_batching")) == (8, True)
    assert [(tensor.name, list(tensor.dims)) for tensor in complete.input] == [("X", [16])]
    assert [(tensor.name, list(tensor.dims)) for tensor in complete.output] == [("Y", [16])]


@pytest.mark.parametrize("pinned", ["true", "false"])
def test_batches(pinned: str, doubled: Path) -> None:
    text = f"input_pinned_memory {{ enable: {pinned} }} output_pinned_memory {{ enable: {pinned} }}"
    served = serve(doubled, f"optimization {{ {text} }}")
    for counts in ((1,), (3, 2), (8,), (1, 1, 1, 1), (2,)):
        holds(served, *counts)
    served.close()


def test_results_outlive_the_next_execution(doubled: Path) -> None:
    served = serve(doubled)
    first, second = (served(infer({"X": rows(2, start)}))[0] for start in (0, 50))
    assert (first.arrays["Y"] == 2 * rows(2)).all()
    assert (second.arrays["Y"] == 2 * rows(2, 50)).all()


def test_more_rows_than_the_profile_allows(doubled: Path) -> None:
    served = serve(doubled)
    (call,) = served(infer({"X": rows(9)}))
    assert "the shape of dimension 0 to be between 1 and 8 but received 9" in call.error
    holds(served, 8)


def test_instances_execute_at_the_same_time(doubled: Path) -> None:
    served = serve(doubled)
    others = [Instance(served.model, f"m_0_{index}", "GPU") for index in range(1, 4)]
    for instance in others:
        served.backend.instance_initialize(instance)
    assert len({id(one.state._engine) for one in (served.instance, *others)}) == 1
    wrong: list[int] = []

    def work(instance: Instance, seed: int) -> None:
        from tests.unit.backend_harness import Call

        for step in range(100):
            array = rows(1 + step % 8, 1000 * seed + step)
            call = Call(infer({"X": array}))
            served.backend.instance_execute(instance, [call])
            if not (call.arrays["Y"] == 2 * array).all():
                wrong.append(step)

    threads = [threading.Thread(target=work, args=(one, seed)) for seed, one in enumerate(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_profiles_by_index(tmp_path: Path) -> None:
    folder = engines.write(
        tmp_path, engines.doubled, [engines.batches(4), engines.batches(8), engines.batches(32, 16, 8)]
    )
    served = serve(folder, 'instance_group { kind: KIND_GPU gpus: 0 profile: ["0", "2"] }')
    assert served.model.config.max_batch_size == 32
    served.instance.profiles = ("0", "2")
    served.backend.instance_initialize(served.instance)
    for count in (1, 4, 8, 32, 3):
        holds(served, count)
    (call,) = served(infer({"X": rows(6)}))
    assert "request specifies invalid shape for input 'X'" in call.error
    with pytest.raises(InferError, match="index range 0-2"):
        serve(folder, 'instance_group { kind: KIND_GPU gpus: 0 profile: "3" }')


def test_graphs_execute_what_was_recorded(doubled: Path) -> None:
    served = serve(doubled, GRAPHS.format(""))
    assert len(served.instance.state._graphs) == 6
    for count in (1, 8, 2, 5, 3, 7, 4, 6, 1, 2, 8):
        holds(served, count)
    holds(served, 1, 2)


def test_a_graph_executes_padded_batches(doubled: Path) -> None:
    spec = "graph_spec { batch_size: 8 graph_lower_bound { batch_size: 5 } }"
    served = serve(doubled, GRAPHS.format(spec))
    assert len(served.instance.state._graphs) == 1
    for count in (8, 5, 6, 4, 7):
        holds(served, count)


def test_shape_tensors(tmp_path: Path) -> None:
    served = serve(engines.write(tmp_path, engines.head, [{}], {"S": ((1,), (4,), (12,))}))
    assert [tensor.is_shape_tensor for tensor in served.model.config.input] == [False, True]
    array = np.arange(12, dtype=np.float32)
    for count in (1, 12, 5):
        (call,) = served(infer({"X": array, "S": np.array([count], np.int32)}))
        assert call.arrays["Y"].tolist() == array[:count].tolist()
    (call,) = served(infer({"X": array, "S": np.array([13], np.int32)}))
    assert "expected the value at index 0 to be between 1 and 12 but received 13" in call.error


def test_shapes_that_depend_on_values(tmp_path: Path) -> None:
    served = serve(engines.write(tmp_path, engines.not_zero))
    for places in ([1, 5], [], [0, 1, 2, 3, 4, 5, 6, 7], [7]):
        array = np.zeros(8, np.float32)
        array[places] = 1
        (call,) = served(infer({"X": array}))
        assert call.arrays["Y"].ravel().tolist() == places


def test_a_file_that_is_no_engine(doubled: Path) -> None:
    (doubled / "1" / "model.plan").write_bytes(b"junk" * 1000)
    with pytest.raises(InferError, match="unable to create TensorRT engine: "):
        serve(doubled)
