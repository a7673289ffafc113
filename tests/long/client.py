"""A client of the long suites: tritonclient over both protocols, and connections that break on purpose."""

import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from tests.long.outcomes import Wrong, refusals

TIMEOUT_S: Final = 60.0
_JSON_ELEMENTS: Final = 4096
"""More of them are sent in binary."""

# Whole numbers, so that sums of a few are exact; a slice of them is like no other.
_POOL: Final = np.random.default_rng(1).integers(1, 1 << 21, 1 << 20).astype(np.float32)
SIZES: Final = (1, 16, 1000, 8191, 8192, 8193, 20_000, 40_000, 150_000, 150_000, 400_000)
"""Elements of 4 bytes: from 8192 on they travel through shared memory."""


class Client:
    """One thread's: its random numbers and its connections, which it opens again when they broke."""

    def __init__(self, http: str, grpc: str, seed: int) -> None:
        """`http` and `grpc` are addresses, `host:port`."""
        self.address, self.grpc_address = http, grpc
        self.random = random.Random(seed)
        self._open()

    def _open(self) -> None:
        self.http = tritonclient.http.InferenceServerClient(
            self.address, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
        )
        self.grpc = tritonclient.grpc.InferenceServerClient(self.grpc_address)

    def close(self) -> None:
        """Close the connections."""
        with suppress(Exception):
            self.http.close()
        with suppress(Exception):
            self.grpc.close()

    def renew(self) -> None:
        """Open other connections."""
        self.close()
        self._open()

    def values(self, sizes: Sequence[int] = SIZES) -> np.ndarray:
        """FP32[1, n]: whole numbers below 2^21."""
        n = self.random.choice(sizes)
        start = self.random.randrange(len(_POOL) - n)
        return _POOL[start : start + n].reshape(1, n)

    def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], protocol: str = "", **options: Any
    ) -> Callable[[str], np.ndarray]:
        """Infer over HTTP or gRPC, in one of the forms that there are; returns what gives an output.

        Raises:
            Refused: the server answered with an error, or not at all.
        """
        protocol = protocol or self.random.choice(("http", "grpc"))
        with refusals():
            infer = self._infer_grpc if protocol == "grpc" else self._infer_http
            as_numpy: Callable[[str], np.ndarray] = infer(model, inputs, options).as_numpy
            return as_numpy

    def _infer_grpc(self, model: str, inputs: Mapping[str, np.ndarray], options: dict[str, Any]) -> Any:
        compression = self.random.choice((None, None, None, None, "gzip", "deflate"))
        options = {"client_timeout": TIMEOUT_S, "compression_algorithm": compression, **options}
        return self.grpc.infer(model, tensors(tritonclient.grpc, inputs), **options)

    def _infer_http(self, model: str, inputs: Mapping[str, np.ndarray], options: dict[str, Any]) -> Any:
        short = sum(array.size for array in inputs.values()) <= _JSON_ELEMENTS
        binary = not short or self.random.random() < 0.5
        asked, answered = self.random.choices((None, "gzip", "deflate"), (8, 1, 1), k=2)
        built = tensors(tritonclient.http, inputs, binary_data=binary)
        options = {
            "request_compression_algorithm": asked,
            "response_compression_algorithm": answered,
            **options,
        }
        return self.http.infer(model, built, **options)


def tensors(module: Any, inputs: Mapping[str, np.ndarray], **options: Any) -> list[Any]:
    """Inputs as one of the modules of tritonclient wants them."""
    built = []
    for name, array in inputs.items():
        tensor = module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **options)
        built.append(tensor)
    return built


def check(found: np.ndarray | None, wanted: np.ndarray, what: str) -> None:
    """Compare an output with what it has to be.

    Raises:
        Wrong: they differ.
    """
    if found is None:
        raise Wrong(f"{what}: no output")
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise Wrong(f"{what}: {found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}")
    if not np.array_equal(found, wanted):
        at = np.flatnonzero(found.ravel() != wanted.ravel())
        first = at[0]
        raise Wrong(
            f"{what}{wanted.shape}: {len(at)} elements differ from [{first}] to [{at[-1]}], "
            f"{found.ravel()[first]!r} instead of {wanted.ravel()[first]!r}"
        )


class Cut:
    """A relay to an address that breaks its connection after so many bytes, to or from there."""

    def __init__(self, address: str, after: int) -> None:
        """`address` is `host:port`."""
        host, _, port = address.partition(":")
        self._target = host, int(port)
        self._left = after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "Cut":
        return self

    def __exit__(self, *_: object) -> None:
        self._break()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._left <= 0:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._sockets += (near, far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while self._left > 0 and (data := source.recv(min(self._left, 65536))):
                self._left -= len(data)
                target.sendall(data)
        self._break()

    def _break(self) -> None:
        for open_socket in self._sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
