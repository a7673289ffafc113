"""The routing table on its way to an ingress: bytes, and milliseconds to encode and decode.

Entries have the configuration of a small model and a digest of their own. Run as
`python -m benchmarks.routing_table`.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.routing.table import ModelState, RoutingTable, VersionEntry, decode_table, encode_table

_SIZES: Final = (10, 100, 1000, 5000)
_ROUNDS: Final = 7
_HEADER: Final = """\
| entries | msgpack, bytes | sent, bytes | encode ms | decode ms | index ms |
|---|---|---|---|---|---|"""
_CONFIG: Final = Path(__file__).parent.parent / "model_repository/simple/config.pbtxt"

T = TypeVar("T")


def table(entries: int) -> RoutingTable:
    """Return a table with so many models, all ready."""
    config = text_format.Parse(_CONFIG.read_text(), mc.ModelConfig())
    return RoutingTable(1, True, tuple(_entry(config, number) for number in range(entries)))


def _entry(config: mc.ModelConfig, number: int) -> VersionEntry:
    config.name = f"model_{number}"
    return VersionEntry(
        name=config.name,
        version=1,
        state=ModelState.READY,
        application=f"{config.name}:1",
        content=hashlib.blake2b(config.name.encode(), digest_size=16).hexdigest(),
        config=config.SerializeToString(),
        load_seconds=number / 7,
    )


def _best(work: Callable[[], T]) -> tuple[float, T]:
    """Return the fewest milliseconds of a few calls, and the result."""
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return 1e3 * min(times), result


def main() -> None:
    print(_HEADER)
    for entries in _SIZES:
        made = table(entries)
        plain = msgspec.msgpack.encode(made)
        encode_ms, sent = _best(lambda made=made: encode_table(made))  # type: ignore[misc]
        decode_ms, _ = _best(lambda sent=sent: decode_table(sent))  # type: ignore[misc]
        index_ms, _ = _best(lambda sent=sent: decode_table(sent).applications)  # type: ignore[misc]
        row = (
            entries,
            len(plain),
            len(sent),
            *(f"{ms:.2f}" for ms in (encode_ms, decode_ms, index_ms - decode_ms)),
        )
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    main()
