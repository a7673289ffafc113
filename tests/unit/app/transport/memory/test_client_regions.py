"""Reading and writing client memory, also while the client pulls it away."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError, internal
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor, failed
from app.transport.memory import client_regions
from app.transport.memory.arena import ArenaWriter
from app.transport.memory.client_regions import (
    SHM_DIRECTORY,
    read_inputs,
    with_inlined_regions,
    write_outputs,
)
from app.transport.settings import TransportSettings
from app.transport.wire.frames import FrameDecoder
from app.transport.wire.messages import FrameEncoder, decode_request
from tests.descriptors import descriptors

KEY = f"/nereid-regions-{os.getpid()}"
FILE = Path(SHM_DIRECTORY + KEY)
SIZE = 600_000
DATA = np.random.default_rng(1).bytes(SIZE)


@pytest.fixture(autouse=True, params=["python", "native"])
def file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client's file; it was used once, so that a native process maps it the next time."""
    FILE.write_bytes(DATA)
    monkeypatch.setattr(client_regions._mapped, "regions", None)
    loop = asyncio.new_event_loop()
    if request.param == "native":
        pytest.importorskip("app.native.extension")
        run(loop, client_regions.use_mappings)
        read_inputs(reading(place(0, 1)))
    yield
    loop.close()
    FILE.unlink(missing_ok=True)


def run(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    loop.call_soon(function)
    loop.call_soon(loop.stop)
    loop.run_forever()


def place(offset: int, nbytes: int) -> RegionSlice:
    return RegionSlice("r", offset, nbytes, KEY, FILE.stat().st_ino)


def reading(*parts: RegionSlice) -> InferRequest:
    return InferRequest(
        "m", "", tuple(Tensor("I", "UINT8", (part.nbytes,), part) for part in parts), id="7", regions=True
    )


def writing(**parts: RegionSlice) -> InferRequest:
    outputs = tuple(RequestedOutput(name, region=part) for name, part in parts.items())
    return InferRequest("m", "", (), outputs, id="7", regions=True)


def response(**outputs: bytes) -> InferResponse:
    return InferResponse(
        "m", "1", tuple(Tensor(name, "UINT8", (len(data),), data) for name, data in outputs.items()), "7"
    )


def error(answer: InferResponse) -> tuple[ErrorCode, str]:
    assert answer.failure is not None and not answer.outputs
    return answer.failure.code, answer.failure.message


def refusal(request: InferRequest) -> tuple[ErrorCode, str]:
    with pytest.raises(InferError) as caught:
        read_inputs(request)
    return caught.value.code, caught.value.message


BEYOND = (ErrorCode.INVALID_ARG, "Invalid offset + byte size for shared memory region: 'r'")
UNOPENED = (ErrorCode.INTERNAL, f"Unable to open shared memory region: '{KEY}'")


def test_inputs_are_read_from_their_regions() -> None:
    inline = Tensor("J", "UINT8", (3,), b"abc")
    request = reading(place(0, SIZE), place(1, 7), place(SIZE, 0))
    request = msgspec.structs.replace(request, inputs=(*request.inputs, inline))
    read = read_inputs(request)
    assert [bytes(tensor.data) for tensor in read.inputs] == [DATA, DATA[1:8], b"", b"abc"]
    assert read.inputs[3] is inline
    FILE.write_bytes(bytes(SIZE))
    assert read.inputs[0].data == DATA, "what was read is the request's own"


def test_another_data_plane_of_the_process_may_have_ended() -> None:
    pytest.importorskip("app.native.extension")

    def live() -> None:
        loop = asyncio.new_event_loop()
        run(loop, client_regions.use_mappings)
        loop.close()

    other = threading.Thread(target=live)
    other.start()
    other.join()
    for _ in range(2):
        assert bytes(read_inputs(reading(place(0, SIZE))).inputs[0].data) == DATA


def test_outputs_are_written_to_their_regions() -> None:
    request = writing(A=place(10, 5), B=place(100, 200_000))
    large = np.arange(50_000, dtype=np.float32)
    answer = msgspec.structs.replace(
        response(A=b"hello", C=b"inline"),
        outputs=(*response(A=b"hello", C=b"inline").outputs, Tensor.from_array("B", large)),
    )
    written = write_outputs(request, answer)
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in written.outputs] == [
        ("A", "UINT8", (5,), b""),
        ("C", "UINT8", (6,), b"inline"),
        ("B", "FP32", (50_000,), b""),
    ]
    expected = bytearray(DATA)
    expected[10:15] = b"hello"
    expected[100:200_100] = large.tobytes()
    assert FILE.read_bytes() == expected


def test_output_that_does_not_fit_is_not_written() -> None:
    answer = write_outputs(writing(A=place(0, 4)), response(A=b"hello"))
    text = (
        "shared memory size specified with the request for output 'A' (4 bytes) should be at least 5 bytes "
        "to hold the results"
    )
    assert error(answer) == (ErrorCode.INTERNAL, text)
    assert (answer.id, answer.final) == ("7", True)
    assert FILE.read_bytes() == DATA


def test_failed_response_is_passed_on() -> None:
    failure = failed(internal("it broke"))
    assert write_outputs(writing(A=place(0, 4)), failure) is failure


def test_shortened_file_is_refused() -> None:
    input_, output = reading(place(0, SIZE)), writing(A=place(SIZE - 5, 5))
    os.truncate(FILE, SIZE - 1)
    assert refusal(input_) == BEYOND
    assert error(write_outputs(output, response(A=b"hello"))) == BEYOND
    assert FILE.stat().st_size == SIZE - 1, "a write has made the client's file longer again"


def test_another_file_under_the_same_key_is_refused() -> None:
    input_, output = reading(place(0, 8)), writing(A=place(0, 5))
    FILE.unlink()
    assert refusal(input_) == UNOPENED
    FILE.write_bytes(bytes(SIZE))
    assert refusal(input_) == UNOPENED
    assert error(write_outputs(output, response(A=b"hello"))) == UNOPENED
    assert FILE.read_bytes() == bytes(SIZE)


def test_sparse_file_of_terabytes_is_not_read_whole() -> None:
    os.truncate(FILE, 1 << 42)
    request = reading(place(0, 1 << 30), place(0, 1 << 42))
    assert refusal(request)[0] is ErrorCode.INVALID_ARG


SHRINK = """
import os, sys
while os.path.exists(sys.argv[1]):
    os.truncate(sys.argv[1], 0)
    os.truncate(sys.argv[1], int(sys.argv[2]))
"""


def test_truncation_by_another_process_during_requests_is_survived() -> None:
    """A bare mapping would end this process with SIGBUS within a few rounds."""
    outcomes = set[str]()
    with subprocess.Popen([sys.executable, "-c", SHRINK, FILE, str(SIZE)]) as child:
        rounds, give_up = 0, time.monotonic() + 60
        try:
            # On a busy machine either may have the processor for long.
            while rounds < 300 or (len(outcomes) < 3 and time.monotonic() < give_up):
                rounds += 1
                try:
                    read_inputs(reading(place(0, SIZE)))
                    outcomes.add("read")
                except InferError as caught:
                    outcomes.add(caught.message)
                answer = write_outputs(writing(A=place(0, SIZE)), response(A=DATA))
                outcomes.add(answer.failure.message if answer.failure else "written")
        finally:
            child.kill()
    assert {BEYOND[1]} < outcomes <= {"read", "written", BEYOND[1]}


def test_no_descriptor_stays_open() -> None:
    before = descriptors(FILE)
    read_inputs(reading(place(0, 8)))
    write_outputs(writing(A=place(0, 8)), response(A=b"12345678"))
    refusal(reading(place(SIZE - 1, 8)))
    write_outputs(writing(A=place(SIZE - 1, 8)), response(A=b"12345678"))
    assert descriptors(FILE) == before


def test_inputs_are_sent_inline_to_another_node() -> None:
    request = msgspec.structs.replace(reading(place(0, 8)), outputs=writing(A=place(8, 8)).outputs)
    answers: list[InferResponse] = []
    sent, sink = with_inlined_regions(request, answers.append)
    assert (bytes(sent.inputs[0].data), sent.outputs, sent.regions) == (
        DATA[:8],
        (RequestedOutput("A"),),
        False,
    )
    sink(response(A=b"12345678"))
    assert answers[0].outputs[0].data == b""
    assert FILE.read_bytes()[8:16] == b"12345678"


@pytest.mark.parametrize("nbytes", [8, SIZE])
def test_frame_carries_the_place_of_a_tensor_in_client_memory(nbytes: int) -> None:
    request = msgspec.structs.replace(
        reading(place(0, nbytes)), outputs=(RequestedOutput("P"), *writing(A=place(8, nbytes)).outputs)
    )
    arena = ArenaWriter(1 << 20)
    queue: list[Any] = []
    size = FrameEncoder(TransportSettings(), arena).request(queue, 1, request, 0)
    assert size < 1000 and not arena.live
    decoder = FrameDecoder(1 << 20, 1 << 20, 1 << 20)
    decoder.get_buffer()[:size] = b"".join(queue)
    (frame,) = decoder.received(size)
    assert decode_request(frame, 0.0, None) == request
    arena.close()
