"""Tensors in shared memory, through every client, with tritonclient's own module for the client's side."""

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialize_byte_tensor

from tests.contract.drivers import Driver, Output, Refused, Shared
from tests.contract.samples import check_simple
from tests.hints import tritons

NBYTES = 64
ROW = np.arange(16, dtype=np.int32)


class Memory:
    """Regions of a test, registered through one client; the key of each is its own."""

    def __init__(self, client: Driver) -> None:
        self._client = client
        self._handles: list[Any] = []

    def register(self, name: str, nbytes: int, offset: int = 0) -> Any:
        key = f"/nereid-{uuid.uuid4().hex}"
        handle = shm.create_shared_memory_region(name, key, nbytes + offset)
        self._handles.append(handle)
        self._client.call("register_system_shared_memory", name, key, nbytes, offset=offset)
        return handle

    def close(self) -> None:
        self._client.call("unregister_system_shared_memory")
        for handle in self._handles:
            shm.destroy_shared_memory_region(handle)


@pytest.fixture
def memory(client: Driver) -> Iterator[Memory]:
    made = Memory(client)
    yield made
    made.close()


def status(client: Driver, name: str = "") -> dict[str, dict[str, Any]]:
    """Regions by name: a list over HTTP, a map over gRPC."""
    answer = client.call("get_system_shared_memory_status", name)
    if client.protocol == "http":
        return {region["name"]: region for region in answer}
    return {
        name: {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
        for name, r in answer.regions.items()
    }


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.refusal


def pair(region: str, first: int = 0) -> list[Shared]:
    """The inputs of `simple`, one behind the other."""
    return [
        Shared("INPUT0", region, NBYTES, first, "INT32", (1, 16)),
        Shared("INPUT1", region, NBYTES, first + NBYTES, "INT32", (1, 16)),
    ]


def test_inputs_and_outputs_in_one_region_each(client: Driver, memory: Memory) -> None:
    source, target = memory.register("in", 2 * NBYTES), memory.register("out", 2 * NBYTES)
    shm.set_shared_memory_region(source, [ROW, np.ones_like(ROW)])
    outputs = [Shared("OUTPUT0", "out", NBYTES), Shared("OUTPUT1", "out", NBYTES, NBYTES)]
    response = client.infer_shared("simple", pair("in"), outputs)
    assert response.names == ["OUTPUT0", "OUTPUT1"]
    if client.protocol == "http":
        assert response.output("OUTPUT0") == {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16]}
    else:
        assert response.raw("OUTPUT0") == b""
    written = shm.get_contents_as_numpy(target, np.int32, [2, 16])
    np.testing.assert_array_equal(written, [ROW + 1, ROW - 1])


def test_offsets_and_one_region_for_both(client: Driver, memory: Memory) -> None:
    handle = memory.register("both", 3 * NBYTES, offset=32)
    shm.set_shared_memory_region(handle, [ROW, ROW], offset=32 + NBYTES)
    response = client.infer_shared(
        "simple", pair("both", NBYTES), [Shared("OUTPUT0", "both", NBYTES, NBYTES), Output("OUTPUT1")]
    )
    np.testing.assert_array_equal(response.array("OUTPUT1"), [ROW * 0])
    written = shm.get_contents_as_numpy(handle, np.int32, [3, 16], 32)
    np.testing.assert_array_equal(written, [ROW * 0, ROW * 2, ROW])


def test_large_tensors(client: Driver, memory: Memory) -> None:
    sent = np.random.default_rng(1).random((1, 150_000), dtype=np.float32)
    source, target = memory.register("in", sent.nbytes), memory.register("out", sent.nbytes + 8)
    shm.set_shared_memory_region(source, [sent])
    for shift in (0, 8):
        client.infer_shared(
            "identity_all",
            [Shared("INPUT_FP32", "in", sent.nbytes, 0, "FP32", sent.shape)],
            [Shared("OUTPUT_FP32", "out", sent.nbytes, shift)],
        )
        np.testing.assert_array_equal(shm.get_contents_as_numpy(target, np.float32, sent.shape, shift), sent)


def test_strings(client: Driver, memory: Memory) -> None:
    numbers = [serialize_byte_tensor(np.array([str(n).encode() for n in row], object)) for row in (ROW, ROW)]
    sizes = [len(packed.item()) for packed in numbers]
    source, target = memory.register("in", sum(sizes)), memory.register("out", 1000)
    shm.set_shared_memory_region(source, numbers)
    inputs = [
        Shared("INPUT0", "in", sizes[0], 0, "BYTES", (1, 16)),
        Shared("INPUT1", "in", sizes[1], sizes[0], "BYTES", (1, 16)),
    ]
    client.infer_shared("simple_string", inputs, [Shared("OUTPUT0", "out", 1000)])
    written = shm.get_contents_as_numpy(target, np.object_, [1, 16])
    assert [int(text) for text in written.ravel()] == (ROW * 2).tolist()
    short = [Shared("INPUT0", "in", sizes[0] - 1, 0, "BYTES", (1, 16)), inputs[1]]
    code, text = refused(lambda: client.infer_shared("simple_string", short, []))
    assert code in ("400", "INVALID_ARGUMENT") and "incomplete string data" in text


REFUSED = [
    (pair("none"), [], ("404", "NOT_FOUND"), "Unable to find shared memory region: 'none'"),
    (pair("r", 192), [], ("400", "INVALID_ARGUMENT"), "Invalid offset for shared memory region: 'r'"),
    (
        pair("r", 96),
        [],
        ("400", "INVALID_ARGUMENT"),
        "Invalid offset + byte size for shared memory region: 'r'",
    ),
    (
        pair("r"),
        [Shared("OUTPUT0", "none", NBYTES)],
        ("404", "NOT_FOUND"),
        "Unable to find shared memory region: 'none'",
    ),
    (
        pair("r"),
        [Shared("OUTPUT0", "r", NBYTES, 180)],
        ("400", "INVALID_ARGUMENT"),
        "Invalid offset + byte size for shared memory region: 'r'",
    ),
    (
        pair("r"),
        [Shared("OUTPUT0", "r", NBYTES - 1)],
        ("500", "INTERNAL"),
        "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64 "
        "bytes to hold the results",
    ),
    (
        [pair("r")[0], Shared("INPUT1", "r", NBYTES - 4, 0, "INT32", (1, 16))],
        [],
        ("400", "INVALID_ARGUMENT"),
        "[request id: <id_unknown>] input byte size mismatch for input 'INPUT1' for model 'simple'. Expected "
        "64, got 60",
    ),
]


@pytest.mark.parametrize(("inputs", "outputs", "codes", "text"), REFUSED)
def test_refused(
    client: Driver,
    memory: Memory,
    inputs: list[Shared],
    outputs: list[Shared],
    codes: tuple[str, str],
    text: str,
) -> None:
    memory.register("r", 3 * NBYTES)
    code = codes[0] if client.protocol == "http" else codes[1]
    found, said = refused(lambda: client.infer_shared("simple", inputs, outputs))
    assert (found, tritons(said)) == (code, text)
    check_simple(client)


def test_status_and_unregister(client: Driver, memory: Memory) -> None:
    assert status(client) == {}
    memory.register("a", 64)
    memory.register("b", 32, offset=16)
    regions = status(client)
    assert {name: (region["offset"], region["byte_size"]) for name, region in regions.items()} == {
        "a": (0, 64),
        "b": (16, 32),
    }
    assert status(client, "b") == {"b": regions["b"]}
    code, text = refused(
        lambda: client.call("register_system_shared_memory", "b", regions["a"]["key"], 8, offset=0)
    )
    assert (code, text) == (
        "400" if client.protocol == "http" else "ALREADY_EXISTS",
        "shared memory region 'b' already in manager",
    )
    client.call("unregister_system_shared_memory", "b")
    client.call("unregister_system_shared_memory", "unknown")
    assert status(client) == {"a": regions["a"]}
    assert refused(lambda: status(client, "b")) == (
        "404" if client.protocol == "http" else "NOT_FOUND",
        "Unable to find system shared memory region: 'b'",
    )


def test_gpu_memory_without_gpus(client: Driver) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there are GPUs")
    code, text = refused(lambda: client.call("register_cuda_shared_memory", "g", b"A" * 86 + b"==", 0, 8))
    assert code in ("400", "INVALID_ARGUMENT")
    assert text == "failed to register shared memory region: invalid args"
    client.call("unregister_cuda_shared_memory")
    answer = client.call("get_cuda_shared_memory_status")
    assert not (answer if client.protocol == "http" else answer.regions)


@contextmanager
def cut_again_and_again(client: Driver, nbytes: int) -> Iterator[None]:
    """Region `cut`, whose file is now of this size, now empty."""
    key, stop = f"nereid-{uuid.uuid4().hex}", threading.Event()
    path = f"/dev/shm/{key}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, nbytes)
    client.call("register_system_shared_memory", "cut", key, nbytes)

    def cut() -> None:
        while not stop.is_set():
            os.ftruncate(descriptor, 0)
            stop.wait(0.0005)
            os.ftruncate(descriptor, nbytes)
            stop.wait(0.002)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        client.call("unregister_system_shared_memory", "cut")
        os.close(descriptor)
        os.unlink(path)


def test_a_region_cut_off_while_requests_run(client: Driver) -> None:
    """No process may die of it: every request is answered, by its result or by the one error there is."""
    nbytes = 600_000
    outcomes: set[str] = set()
    both = {"answered", "Invalid offset + byte size for shared memory region: 'cut'"}
    until = time.monotonic() + 60
    with cut_again_and_again(client, 2 * nbytes):
        for count in itertools.count():
            if count >= 150 and (outcomes >= both or time.monotonic() > until):
                break
            try:
                client.infer_shared(
                    "identity_all",
                    [Shared("INPUT_UINT8", "cut", nbytes, 0, "UINT8", (1, nbytes))],
                    [Shared("OUTPUT_UINT8", "cut", nbytes, nbytes)],
                )
                outcomes.add("answered")
            except Refused as caught:
                outcomes.add(caught.refusal.text)
    assert outcomes == both
    check_simple(client)
