"""The registry of client memory; two registries stand for two ingress replicas of one node."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.core.errors import ErrorCode, InferError, internal
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from app.ingress.client_memory.region_files import Region
from app.ingress.client_memory.registry import DISABLED, SharedMemory
from app.transport.memory.client_regions import SHM_DIRECTORY
from tests.descriptors import descriptors

KEY = f"/nereid-test-{os.getpid()}"
FILE = Path(SHM_DIRECTORY + KEY)
HANDLE = bytes(range(64))


@pytest.fixture(autouse=True)
def file() -> Iterator[None]:
    FILE.write_bytes(bytes(1000))
    yield
    FILE.unlink(missing_ok=True)


@pytest.fixture
def one(tmp_path: Path) -> SharedMemory:
    return SharedMemory(str(tmp_path / "regions"), gpus=0)


@pytest.fixture
def two(tmp_path: Path) -> SharedMemory:
    return SharedMemory(str(tmp_path / "regions"), gpus=0)


def refusal(call: Callable[[], Any]) -> tuple[ErrorCode, str]:
    with pytest.raises(InferError) as caught:
        call()
    return caught.value.code, caught.value.message


def names(memory: SharedMemory, cuda: bool = False) -> list[str]:
    return [region.name for region in memory.status("", cuda)]


def using(*slices: RegionSlice, output: RegionSlice | None = None) -> InferRequest:
    inputs = tuple(Tensor(f"I{i}", "UINT8", (part.nbytes,), part) for i, part in enumerate(slices))
    outputs = (RequestedOutput("O", region=output),) if output is not None else ()
    return InferRequest("m", "", inputs, outputs, regions=True)


class Sent:
    """The request that the registry sent, and the responses to it."""

    def __init__(self, memory: SharedMemory, request: InferRequest) -> None:
        self.responses: list[InferResponse] = []
        memory.send(cast(Any, SimpleNamespace(submit=self._send)), request, self.responses.append)

    def _send(self, request: InferRequest, sink: Callable[[InferResponse], None]) -> None:
        self.request, self.sink = request, sink

    def finish(self) -> None:
        self.sink(InferResponse())


def test_regions_are_shared_by_the_ingresses_of_a_node(one: SharedMemory, two: SharedMemory) -> None:
    one.register_system("b", KEY, 0, 1000)
    two.register_system("a", KEY, 100, 900)
    inode = FILE.stat().st_ino
    a, b = Region("a", 900, KEY, 100, inode), Region("b", 1000, KEY, 0, inode)
    for memory in (one, two):
        assert memory.status("", cuda=False) == [a, b]
        assert memory.status("a", cuda=False) == [a]
        assert names(memory, cuda=True) == []
    one.unregister("a", cuda=False)
    assert names(two) == ["b"]
    two.unregister("", cuda=False)
    assert names(one) == []


REFUSED = [
    (
        "",
        KEY,
        0,
        8,
        ErrorCode.INVALID_ARG,
        "'region name' is necessary to register system shared memory region",
    ),
    ("r", "/nereid-none", 0, 8, ErrorCode.INTERNAL, "Unable to open shared memory region: '/nereid-none'"),
    ("r", KEY, 0, 1001, ErrorCode.INVALID_ARG, "failed to register shared memory region 'r': invalid args"),
    ("r", KEY, 993, 8, ErrorCode.INVALID_ARG, "failed to register shared memory region 'r': invalid args"),
    (
        "r",
        KEY,
        2**64 - 1,
        2,
        ErrorCode.INVALID_ARG,
        "failed to register shared memory region 'r': invalid args",
    ),
    ("r", KEY, 0, 0, ErrorCode.INVALID_ARG, "failed to register shared memory region 'r': invalid args"),
    *(
        (
            "r",
            key,
            0,
            8,
            ErrorCode.INVALID_ARG,
            f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved "
            "prefix 'triton_python_backend_shm_region_'",
        )
        for key in ("triton_python_backend_shm_region_1", "//triton_python_backend_shm_region_1")
    ),
    *(
        (
            "r",
            key,
            0,
            8,
            ErrorCode.INVALID_ARG,
            f"cannot register shared memory region 'r' - invalid shm key '{key}'",
        )
        for key in ("", "/", "..", "/..", "../etc/passwd", "a/b", "a\0b", "x" * 256)
    ),
]


# Numbers as ids: those of parallel workers must agree, and the key has the process's in it.
@pytest.mark.parametrize(
    ("name", "key", "offset", "size", "code", "text"), REFUSED, ids=map(str, range(len(REFUSED)))
)
def test_invalid_registrations_are_refused(
    one: SharedMemory, name: str, key: str, offset: int, size: int, code: ErrorCode, text: str
) -> None:
    assert refusal(lambda: one.register_system(name, key, offset, size)) == (code, text)
    assert names(one) == []


def test_symbolic_links_are_not_followed(one: SharedMemory, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(1000))
    FILE.unlink()
    FILE.symlink_to(tmp_path / "secret")
    assert refusal(lambda: one.register_system("r", KEY, 0, 8))[0] is ErrorCode.INTERNAL


def test_names_are_unique(one: SharedMemory, two: SharedMemory) -> None:
    one.register_system("r", KEY, 0, 8)
    text = "shared memory region 'r' already in manager"
    assert refusal(lambda: two.register_system("r", KEY, 8, 8)) == (ErrorCode.ALREADY_EXISTS, text)
    assert refusal(lambda: two.status("s", cuda=False)) == (
        ErrorCode.NOT_FOUND,
        "Unable to find system shared memory region: 's'",
    )
    two.unregister("s", cuda=False)


def test_disabled_registry_refuses_everything(tmp_path: Path) -> None:
    memory = SharedMemory(str(tmp_path / "regions"), enabled=False)
    disabled = (ErrorCode.UNSUPPORTED, DISABLED)
    assert refusal(lambda: memory.register_system("r", KEY, 0, 8)) == disabled
    assert refusal(lambda: memory.register_cuda("r", HANDLE, 0, 8)) == disabled
    assert refusal(lambda: memory.unregister("r", cuda=False)) == disabled
    assert names(memory) == names(memory, cuda=True) == []
    part = RegionSlice("r", 0, 8)
    assert refusal(lambda: Sent(memory, using(part)))[0] is ErrorCode.NOT_FOUND


def test_slices_are_resolved(one: SharedMemory) -> None:
    one.register_system("r", KEY, 100, 50)
    sent = Sent(one, using(RegionSlice("r", 0, 50), RegionSlice("r", 42, 8), output=RegionSlice("r", 0, 16)))
    inode = FILE.stat().st_ino
    assert [tensor.data for tensor in sent.request.inputs] == [
        RegionSlice("r", 100, 50, KEY, inode),
        RegionSlice("r", 142, 8, KEY, inode),
    ]
    assert sent.request.outputs[0].region == RegionSlice("r", 100, 16, KEY, inode)


OUTSIDE = "Invalid offset + byte size for shared memory region: 'r'"


@pytest.mark.parametrize(
    ("part", "code", "text"),
    [
        (RegionSlice("s", 0, 8), ErrorCode.NOT_FOUND, "Unable to find shared memory region: 's'"),
        (RegionSlice("r", 50, 1), ErrorCode.INVALID_ARG, "Invalid offset for shared memory region: 'r'"),
        (
            RegionSlice("r", 2**64 - 1, 2),
            ErrorCode.INVALID_ARG,
            "Invalid offset for shared memory region: 'r'",
        ),
        (RegionSlice("r", 0, 51), ErrorCode.INVALID_ARG, OUTSIDE),
        (RegionSlice("r", 49, 2), ErrorCode.INVALID_ARG, OUTSIDE),
        (RegionSlice("r", 1, 2**64 - 2), ErrorCode.INVALID_ARG, OUTSIDE),
        (
            RegionSlice("r", 32, 2**64 - 32),
            ErrorCode.INVALID_ARG,
            "Integer overflow detected: byte_size (18446744073709551584) + offset (32) exceeds maximum value "
            "(18446744073709551615) for region 'r'",
        ),
    ],
)
def test_slices_outside_are_refused(one: SharedMemory, part: RegionSlice, code: ErrorCode, text: str) -> None:
    one.register_system("r", KEY, 100, 50)
    good = RegionSlice("r", 0, 8)
    assert refusal(lambda: Sent(one, using(good, part))) == (code, text)
    assert refusal(lambda: Sent(one, using(good, output=part))) == (code, text)
    one.unregister("r", cuda=False)
    assert names(one) == [], "a refused request still has its lease"


def test_unregistering_waits_for_the_requests_of_every_ingress(one: SharedMemory, two: SharedMemory) -> None:
    one.register_system("r", KEY, 0, 8)
    part = RegionSlice("r", 0, 8)
    requests = [Sent(one, using(part)), Sent(one, using(part)), Sent(two, using(part))]
    one.unregister("", cuda=False)
    for request in requests:
        assert names(one) == names(two) == ["r"]
        assert refusal(lambda: one.register_system("r", KEY, 0, 8))[0] is ErrorCode.ALREADY_EXISTS
        request.sink(InferResponse(final=False))
        assert names(one) == ["r"]
        request.finish()
        assert len(request.responses) == 2
    assert names(one) == names(two) == []
    assert refusal(lambda: Sent(one, using(part)))[0] is ErrorCode.NOT_FOUND
    two.register_system("r", KEY, 0, 8)
    assert names(one) == ["r"]


def test_region_whose_last_user_died_is_removed(one: SharedMemory, two: SharedMemory) -> None:
    one.register_system("r", KEY, 0, 8)
    sent = Sent(one, using(RegionSlice("r", 0, 8)))
    two.unregister("r", cuda=False)
    assert names(two) == ["r"]
    os.close(one._leases["r"].descriptor)  # what the kernel does when a process dies
    assert names(two) == []
    assert sent.responses == []


def test_request_that_cannot_be_sent_releases_its_regions(one: SharedMemory) -> None:
    one.register_system("r", KEY, 0, 8)

    def send(request: InferRequest, sink: Callable[[InferResponse], None]) -> None:
        raise internal("no replica")

    request = using(RegionSlice("r", 0, 8))
    target: Any = SimpleNamespace(submit=send)
    assert refusal(lambda: one.send(target, request, lambda _: None)) == (ErrorCode.INTERNAL, "no replica")
    one.unregister("r", cuda=False)
    assert names(one) == []


def test_one_descriptor_of_a_used_region_stays_open(one: SharedMemory, tmp_path: Path) -> None:
    one.register_system("r", KEY, 0, 8)
    before = descriptors(FILE, tmp_path)
    for _ in range(3):
        Sent(one, using(RegionSlice("r", 0, 8), RegionSlice("r", 0, 8))).finish()
        one.status("", cuda=False)
    assert descriptors(FILE, tmp_path) == before + 1
    one.unregister("", cuda=False)
    one.close()
    assert descriptors(FILE, tmp_path) == before
    assert not (tmp_path / "regions").exists()


def test_cached_descriptor_does_not_keep_a_region(one: SharedMemory, two: SharedMemory) -> None:
    one.register_system("r", KEY, 0, 8)
    Sent(one, using(RegionSlice("r", 0, 8))).finish()
    two.unregister("r", cuda=False)
    assert names(one) == names(two) == [], "an idle region has no lease"
    assert refusal(lambda: Sent(one, using(RegionSlice("r", 0, 8))))[0] is ErrorCode.NOT_FOUND
    two.register_system("r", KEY, 4, 4)
    sent = Sent(one, using(RegionSlice("r", 0, 4)))
    assert sent.request.inputs[0].data.offset == 4
    two.unregister("r", cuda=False)
    assert names(two) == ["r"], "until the request has ended"
    sent.finish()
    assert names(two) == []


def test_cuda_regions(tmp_path: Path, one: SharedMemory, caplog: pytest.LogCaptureFixture) -> None:
    refused = (ErrorCode.INVALID_ARG, "failed to register shared memory region: invalid args")
    assert refusal(lambda: one.register_cuda("r", HANDLE, 0, 8)) == refused
    assert refusal(lambda: one.register_cuda("", HANDLE, 0, 8)) == refused
    assert "region 'r': bytes 8, handle of 64 bytes, device 0 of 0" in caplog.text
    gpus = SharedMemory(str(tmp_path / "regions"), gpus=2)
    for handle, device, size in ((HANDLE[1:], 0, 8), (HANDLE, 2, 8), (HANDLE, -1, 8), (HANDLE, 0, 0)):
        call = partial(gpus.register_cuda, "r", handle, device, size)
        assert refusal(call) == refused
    gpus.register_cuda("r", HANDLE, 1, 8)
    gpus.register_system("s", KEY, 0, 8)
    assert gpus.status("", cuda=True) == [Region("r", 8, handle=HANDLE, device_id=1)]
    sent = Sent(gpus, using(RegionSlice("r", 4, 4)))
    assert sent.request.inputs[0].data == RegionSlice("r", 4, 4, handle=HANDLE, device=1)
    sent.finish()
    gpus.unregister("", cuda=True)
    assert (names(gpus, cuda=True), names(gpus)) == ([], ["s"])


def test_a_client_confined_to_some_models_has_its_own_regions_only(one: SharedMemory, tmp_path: Path) -> None:
    other = SharedMemory(str(tmp_path / "regions"), client=lambda: "other")
    one.register_system("shared", KEY, 0, 8)
    other.register_system("own", KEY, 0, 8)
    assert names(other) == ["own"] and names(one) == ["own", "shared"]
    text = "the shared memory region 'shared' was registered by another client"
    assert refusal(lambda: other.unregister("shared", cuda=False)) == (ErrorCode.PERMISSION_DENIED, text)
    assert refusal(lambda: other.status("shared", cuda=False))[0] is ErrorCode.NOT_FOUND
    other.unregister("", cuda=False)
    assert names(one) == ["shared"]
    one.unregister("", cuda=False)
    assert names(one) == []
