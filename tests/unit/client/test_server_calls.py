"""What a client asks of a server besides inferences, over HTTP and gRPC: of an engine in mode EXPLICIT."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nereid.commands import token
from nereid_client import DeadlineExceeded, Server, ServerError, Tls, connect, connect_async
from tests.certificates import Authority
from tests.unit.client.serving import Addresses, serve
from tests.unit.nereid.engine.repositories import FP32, add_model, source

ROW = np.array([1.0, 2.0], np.float32)
TRIPLE = source("return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) * 3)]) for r in requests]")
BATCHED = {
    "max_batch_size": 8,
    "backend": "python",
    "dynamic_batching": {"priority_levels": 2, "default_priority_level": 2},
}
TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}],
}
URLS = ["http", "grpc"]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    for name in ("double", "other", "broken"):
        add_model(repository, name)
    (repository / "broken" / "1" / "model.py").write_text("raise ImportError('no such thing')")
    yield from serve(repository, load_model=["double"])


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, addresses: Addresses) -> str:
    return str(getattr(addresses, request.param))


@pytest.fixture
def connected(url: str) -> Iterator[Server]:
    with connect(url, timeout=30) as server:
        yield server


def listed(server: Server, name: str) -> list[dict[str, str]]:
    return [dict(model) for model in server.index() if model["name"] == name]


def test_index_has_what_is_loaded_and_what_is_not(connected: Server) -> None:
    loaded = {"name": "double", "version": "1", "state": "READY", "reason": ""}
    assert listed(connected, "double") == [loaded], "what is empty too"
    never = {"name": "other", "version": "", "state": "", "reason": ""}
    assert listed(connected, "other") == [never]


def test_load_and_unload(connected: Server) -> None:
    connected.load("other")
    assert connected.ready("other") and connected.model("other")(IN=ROW)["OUT"].tolist() == [2, 4]
    connected.unload("other")
    assert not connected.ready("other")
    (found,) = listed(connected, "other")
    assert (found["state"], found["reason"]) == ("UNAVAILABLE", "unloaded")


def test_load_with_another_configuration_and_other_files(connected: Server) -> None:
    connected.load("other", {"backend": "python", **TENSORS}, {"1/model.py": TRIPLE.encode()})
    assert connected.model("other")(IN=ROW)["OUT"].tolist() == [3, 6]
    connected.load("other", {**BATCHED, **TENSORS})
    model = connected.model("other")
    assert model.signature().batched and model(IN=ROW)["OUT"].tolist() == [2, 4]
    first = model.options(priority=1, parameters={"mine": "x"})
    assert first(IN=[ROW, ROW])["OUT"].tolist() == [[2, 4]] * 2
    connected.unload("other")


def test_load_that_fails_says_why(connected: Server) -> None:
    with pytest.raises(ServerError, match="no such thing"):
        connected.load("broken")
    with pytest.raises(ServerError, match="failed to load 'nobody', failed to poll from model repository"):
        connected.load("nobody")


def test_statistics_count_calls(connected: Server) -> None:
    before = connected.statistics("double")[0]
    connected.model("double", 1)(IN=ROW)
    (after,) = connected.statistics("double", "1")
    assert (after["name"], after["version"]) == ("double", "1")
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["inference_stats"]["fail"]["count"] == 0


def test_both_protocols_describe_a_server_and_its_models_alike(addresses: Addresses) -> None:
    config = {**BATCHED, **TENSORS, "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}
    config["dynamic_batching"] = {"max_queue_delay_microseconds": 7, "preferred_batch_size": [4]}
    with connect(addresses.http) as http, connect(addresses.grpc) as grpc:
        http.load("other", config)
        metadata, described = http.model("other").described()
        assert (metadata, described) == grpc.model("other").described()
        assert metadata["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, 2]}]
        assert described["dynamic_batching"]["max_queue_delay_microseconds"] == 7
        assert described["input"][0]["dims"] == [2]
        assert http.metadata() == grpc.metadata()
        assert http.index() == grpc.index()
        (counted,) = http.statistics("other")
        assert grpc.statistics("other") == [{**counted, "response_stats": {}}]
        grpc.load("other", described)  # what is read can be given back
        assert grpc.model("other").described()[1] == described
        http.unload("other")


def test_waiting_for_what_does_not_come(connected: Server) -> None:
    with pytest.raises(DeadlineExceeded, match=r"model 'nobody' is not ready after 0\.01 s"):
        connected.wait_ready("nobody", timeout=0.01)


def test_copies_stay_when_a_result_is_closed(connected: Server) -> None:
    with connected.model("double").options(hedge=True)(IN=ROW) as result:
        assert "OUT float32[2]" in repr(result) and len(result) == 1
        copied = result.copy()
    assert not result and copied["OUT"].tolist() == [2, 4]


async def test_asyncio(url: str) -> None:
    async with connect_async(url, timeout=30) as server:
        assert await server.live() and not await server.ready("nobody")
        await server.wait_ready("double", "1")
        assert (await server.metadata())["name"] == "triton"
        await server.load("other")
        assert {"name": "other", "version": "1", "state": "READY", "reason": ""} in await server.index()
        model = server.model("other")
        assert (await model.options(id="mine")(IN=ROW)).id == "mine"
        metadata, config = await model.described()
        assert metadata["name"] == config["name"] == "other"
        assert (await model.signature()).inputs["IN"].datatype == "FP32"
        (counted,) = await server.statistics("other")
        assert counted["inference_count"] == 1
        await server.unload("other")
        assert not await server.ready("other")
        async with model.sequence() as sequence:
            assert sequence.id > 0  # no step was made, so none ends it


def test_token_and_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path / "models", "double", config=FP32)
    file = tmp_path / "tokens"
    assert token.main(["new", "--scope=infer", f"--file={file}"]) == 0
    secret = capsys.readouterr().out.split()[0]
    authority = Authority(tmp_path)
    (cert, key), mine = authority.issue("server"), authority.issue("client")
    flags: dict[str, object] = {"load_model": ["double"], "auth_tokens_file": str(file)}
    for front in URLS:
        files = {"server_cert": cert, "server_key": key, "root_cert": authority.root}
        flags |= {f"{front}_{name}": str(path) for name, path in files.items()}
        flags |= {f"{front}_use_ssl": True, f"{front}_use_ssl_mutual": True}
    tls = Tls(authority.root, mine.cert, mine.key)
    for addresses in serve(tmp_path / "models", tls=True, **flags):
        for url in addresses:
            with connect(url, token=secret, headers={"X-Mine": "1"}, tls=tls, timeout=30) as server:
                assert server.model("double")(IN=ROW)["OUT"].tolist() == [2, 4]
                with pytest.raises(ServerError) as refused:
                    server.index()
                assert refused.value.code == "PERMISSION_DENIED"
            with connect(url, tls=tls, timeout=30) as server, pytest.raises(ServerError) as refused:
                server.model("double")(IN=ROW)
            assert refused.value.code == "UNAUTHENTICATED"
            with connect(url, token=secret, tls=Tls(authority.root), timeout=1, retry=False) as server:
                assert not server.live()  # without a certificate of its own
