"""Requests with one answer, each of which has to be the right one."""

import uuid
from contextlib import suppress

import numpy as np
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm

from tests.long.client import Client, check
from tests.long.outcomes import Refused, Wrong, refusals

_TYPES = ("INT8", "UINT16", "INT64", "FP16", "FP64", "BOOL")
_NUMPY = {"INT8": "i1", "UINT16": "u2", "INT64": "i8", "FP16": "f2", "FP64": "f8", "BOOL": "?"}
TOO_LATE = ("Request timeout expired", "is overloaded: the wait in its queue is")
"""Texts of refusals of requests whose time is over, or would be before the answer."""
_WORDS = [b"", b"a", "äöü€".encode(), bytes(range(256)), b"x" * 5000, b"y" * 70_000]


def batched(client: Client) -> None:
    """A model that batches: nobody may have the row of another."""
    values = client.values()
    rows = client.random.choice((1, 1, 1, 3)) if values.size < 50_000 else 1
    values = np.repeat(values, rows, axis=0)
    check(client.infer("identity", {"INPUT0": values})("OUTPUT0"), values, "identity")


def changed(client: Client) -> None:
    """A Python model that changes its input in place and returns it."""
    values = client.values()
    check(client.infer("add_one", {"INPUT0": values})("OUTPUT0"), values + 1, "add_one")


def chained(client: Client) -> None:
    """An ensemble, which hands tensors on without a copy."""
    values = client.values()
    output = client.infer("chain", {"INPUT0": values})
    check(output("UNCHANGED"), values, "chain UNCHANGED")
    check(output("OUTPUT0"), values + 2, "chain OUTPUT0")


def called(client: Client) -> None:
    """A Python model that calls others, in turn."""
    values = client.values()
    check(client.infer("calls", {"INPUT0": values})("OUTPUT0"), values + 2, "calls in turn")


def called_together(client: Client) -> None:
    """A Python model that calls others, at once."""
    values = client.values()
    output = client.infer("calls", {"INPUT0": values}, parameters={"do": "together"})
    check(output("OUTPUT0"), values * 2 + 1, "calls together")


def cached(client: Client) -> None:
    """Of few requests most are answered by the cache."""
    values = np.full((1, client.random.choice((10, 9000, 50_000))), client.random.randrange(20), np.float32)
    check(client.infer("cached", {"INPUT0": values})("OUTPUT0"), values, "cached")


def reloaded(client: Client) -> None:
    """A model that is reloaded meanwhile: no request notices."""
    values = client.values()
    check(client.infer("reloaded", {"INPUT0": values})("OUTPUT0"), values, "reloaded")


def leaked(client: Client) -> None:
    """A model that keeps something of every request: the negative control of the soak."""
    values = client.values((16,))
    check(client.infer("leaky", {"INPUT0": values})("OUTPUT0"), values, "leaky")


def typed(client: Client) -> None:
    """Other data types."""
    kind = client.random.choice(_TYPES)
    n = client.random.choice((1, 300, 30_000))
    values = np.arange(client.random.randrange(90), n + 90)[:n].reshape(1, n).astype(_NUMPY[kind])
    protocol = "grpc" if kind == "FP16" else ""  # which JSON cannot carry
    output = client.infer("identity_all", {f"INPUT_{kind}": values}, protocol)
    check(output(f"OUTPUT_{kind}"), values, f"identity_all {kind}")


def texts(client: Client) -> None:
    """BYTES tensors; not in JSON, which cannot carry all of them."""
    words = client.random.choices(_WORDS, k=client.random.choice((1, 4, 30)))
    values = np.array([words], np.object_)
    protocol = client.random.choice(("http", "grpc"))
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    tensor = module.InferInput("INPUT_BYTES", values.shape, "BYTES")
    tensor.set_data_from_numpy(values)
    with refusals():
        result = getattr(client, protocol).infer("identity_all", [tensor])
    check(result.as_numpy("OUTPUT_BYTES"), values, f"identity_all BYTES over {protocol}")


def shared(client: Client) -> None:
    """An input and an output in shared memory of the client."""
    values = client.values()
    protocol = client.random.choice(("http", "grpc"))
    name = f"soak-{uuid.uuid4().hex}"
    region = shm.create_shared_memory_region(name, f"/{name}", 2 * values.nbytes)
    try:
        shm.set_shared_memory_region(region, [values])
        _infer_shared(client, protocol, name, values)
        found = shm.get_contents_as_numpy(region, np.float32, values.shape, offset=values.nbytes)
        check(found.copy(), values + 1, f"add_one in shared memory over {protocol}")
        del found
    finally:
        with suppress(Exception):
            getattr(client, protocol).unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(region)


def _infer_shared(client: Client, protocol: str, name: str, values: np.ndarray) -> None:
    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    connection = getattr(client, protocol)
    tensor = module.InferInput("INPUT0", values.shape, "FP32")
    tensor.set_shared_memory(name, values.nbytes)
    output = module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory(name, values.nbytes, values.nbytes)
    with refusals():
        connection.register_system_shared_memory(name, f"/{name}", 2 * values.nbytes)
        connection.infer("add_one", [tensor], outputs=[output])


def timed(client: Client) -> None:
    """With a timeout: the right answer, or a refusal that says that time was up."""
    values = client.values((16, 40_000))
    timeout = client.random.choice((1000, 30_000, 2_000_000))
    try:
        found = client.infer("slow", {"INPUT0": values}, timeout=timeout)("OUTPUT0")
    except Refused as error:
        if not any(text in error.refusal.text for text in TOO_LATE):
            raise
        return
    check(found, values, "slow with a timeout")


def described(client: Client) -> None:
    """What is asked beside inference."""
    with refusals():
        for connection in (client.http, client.grpc):
            connection.get_model_metadata("identity")
            connection.get_model_config("chain")
            connection.get_inference_statistics("identity")
        served = {model["name"]: model.get("state") for model in client.http.get_model_repository_index()}
    if served.get("identity") is None:
        raise Wrong(f"the index has no model 'identity': {served}")
