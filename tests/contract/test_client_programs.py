"""What programs written for Triton do with a client beyond single calls: callbacks, options, plug-ins."""

import asyncio
import os
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.grpc.auth
import tritonclient.http
import tritonclient.http.aio
import tritonclient.http.auth
import tritonclient.utils.shared_memory as memory
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, serialized_byte_size

from tests.contract.conftest import Addresses
from tests.contract.drivers import TIMEOUT_S
from tests.contract.samples import simple_inputs

FIRST, SECOND = (tensor.array for tensor in simple_inputs())
MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
SHARED = f"client_programs_{os.getpid()}"


def tensors(module: Any, second: np.ndarray = SECOND) -> list[Any]:
    built = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor, array in zip(built, (FIRST, second), strict=True):
        tensor.set_data_from_numpy(array)
    return built


def check(result: Any, second: np.ndarray = SECOND) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + second)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - second)


@pytest.fixture(params=MODULES)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(server: Addresses, protocol: str) -> Callable[..., Any]:
    """Makes a client of the protocol."""
    return lambda **options: MODULES[protocol].InferenceServerClient(getattr(server, protocol), **options)


def test_futures_of_the_http_client(server: Addresses) -> None:
    with tritonclient.http.InferenceServerClient(server.http, concurrency=4) as client:
        pending = [client.async_infer("simple", tensors(tritonclient.http)) for _ in range(12)]
        for request in pending:
            check(request.get_result(timeout=TIMEOUT_S))
        with pytest.raises(
            InferenceServerException, match="Request for unknown model: 'nobody' is not found"
        ):
            client.async_infer("nobody", tensors(tritonclient.http)).get_result(timeout=TIMEOUT_S)


def test_callbacks_of_the_grpc_client(server: Addresses) -> None:
    """Each callback gets a result or an error, never both."""
    arrived: SimpleQueue[Any] = SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        for model in ("simple", "nobody") * 6:
            client.async_infer(
                model,
                tensors(tritonclient.grpc),
                callback=lambda result, error: arrived.put((result, error)),
                client_timeout=TIMEOUT_S,
            )
        answers = [arrived.get(timeout=TIMEOUT_S) for _ in range(12)]
    assert sorted(error is None for _, error in answers) == [False] * 6 + [True] * 6
    for result, error in answers:
        if error is None:
            check(result)
        else:
            assert (result, error.message()) == (None, "Request for unknown model: 'nobody' is not found")


@pytest.mark.parametrize("module", [tritonclient.http.aio, tritonclient.grpc.aio], ids=["http", "grpc"])
async def test_many_at_once_on_one_asyncio_client(server: Addresses, module: Any) -> None:
    url = server.grpc if module is tritonclient.grpc.aio else server.http
    async with module.InferenceServerClient(url) as client:
        for result in await asyncio.gather(*(client.infer("simple", tensors(module)) for _ in range(32))):
            check(result)


def test_channel_options(server: Addresses) -> None:
    keepalive = tritonclient.grpc.KeepAliveOptions(200, 5000, True, 0)
    channel = [("grpc.max_send_message_length", 1 << 20), ("grpc.max_receive_message_length", 1 << 20)]
    for options in ({"keepalive_options": keepalive}, {"channel_args": channel}):
        with tritonclient.grpc.InferenceServerClient(server.grpc, **options) as client:
            for _ in range(2):
                check(client.infer("simple", tensors(tritonclient.grpc), headers={"test": "1"}))


def test_query_parameters_are_ignored(server: Addresses) -> None:
    query = {"test_1": 1, "test_2": [2, 3]}
    with tritonclient.http.InferenceServerClient(server.http) as client:
        assert client.is_server_live(query_params=query)
        assert client.is_model_ready("simple", query_params=query)
        assert client.get_model_metadata("simple", query_params=query)["name"] == "simple"
        check(client.infer("simple", tensors(tritonclient.http), query_params=query))


def test_a_plug_in_adds_credentials(connect: Any, protocol: str) -> None:
    """A server that asks for no key takes no offence at one."""
    client = connect()
    client.register_plugin(MODULES[protocol].auth.BasicAuth("user", "password"))
    check(client.infer("simple", tensors(MODULES[protocol])))
    client.unregister_plugin()
    check(client.infer("simple", tensors(MODULES[protocol])))


def test_clients_that_are_never_closed(connect: Any, protocol: str) -> None:
    clients = [connect() for _ in range(50)]
    for client in clients:
        check(client.infer("simple", tensors(MODULES[protocol])))


def test_the_same_objects_with_and_without_shared_memory(connect: Any, protocol: str) -> None:
    """Inputs and outputs are pointed at a region, taken out of it, and pointed at it again."""
    client, module = connect(), MODULES[protocol]
    region = memory.create_shared_memory_region(SHARED, f"/{SHARED}", 256)
    try:
        client.register_system_shared_memory(SHARED, f"/{SHARED}", 256)
        memory.set_shared_memory_region(region, [FIRST, SECOND])
        inputs = tensors(module)
        outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        for second in (None, SECOND * 2, None):
            if second is None:
                for place, tensor in enumerate(inputs + outputs):
                    tensor.set_shared_memory(SHARED, 64, offset=64 * place)
                client.infer("simple", inputs, outputs=outputs)
                written = memory.get_contents_as_numpy(region, np.int32, [2, 16], offset=128)
                np.testing.assert_array_equal(written, np.concatenate([FIRST + SECOND, FIRST - SECOND]))
            else:
                for tensor, array in zip(inputs, (FIRST, second), strict=True):
                    tensor.set_data_from_numpy(array)
                for output in outputs:
                    output.unset_shared_memory()
                check(client.infer("simple", inputs, outputs=outputs), second)
    finally:
        client.unregister_system_shared_memory(SHARED)
        memory.destroy_shared_memory_region(region)


def test_strings_in_a_region_that_fits_them_exactly(connect: Any, protocol: str) -> None:
    client, module = connect(), MODULES[protocol]
    data = serialize_byte_tensor(np.array([[b"", b"he\0llo", "é".encode()]], np.object_))
    size = serialized_byte_size(data)
    region = memory.create_shared_memory_region(SHARED, f"/{SHARED}", 2 * size)
    try:
        client.register_system_shared_memory(SHARED, f"/{SHARED}", 2 * size)
        memory.set_shared_memory_region(region, [data])
        given, wanted = module.InferInput("INPUT0", [1, 3], "BYTES"), module.InferRequestedOutput("OUTPUT0")
        given.set_shared_memory(SHARED, size)
        wanted.set_shared_memory(SHARED, size, offset=size)
        client.infer("simple_identity", [given], outputs=[wanted])
        written = memory.get_contents_as_numpy(region, np.object_, [1, 3], offset=size)
        assert written.tolist() == [[b"", b"he\0llo", "é".encode()]]
    finally:
        client.unregister_system_shared_memory(SHARED)
        memory.destroy_shared_memory_region(region)
