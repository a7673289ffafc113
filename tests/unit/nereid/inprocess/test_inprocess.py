"""Programs written for Triton's in-process API, over this one."""

import asyncio
import json
import queue
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import nereid.inprocess as tritonserver
from tests.server import free_port
from tests.unit.nereid.engine.repositories import DECOUPLED, FP32, add_model, source

ROW = np.array([1.0, 2.0], np.float32)
TEXT = """
input [ { name: "IN" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
SAME = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r))]) for r in requests]"
Start = Callable[..., tritonserver.Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[tritonserver.Server] = []

    def start(**options: Any) -> tritonserver.Server:
        servers.append(tritonserver.Server(model_repository=str(tmp_path), **options))
        return servers[-1].start(wait_until_ready=True, polling_interval=0.001, timeout=20)

    yield start
    for server in servers:
        server.stop()


def test_a_program_for_triton_runs(tmp_path: Path, start: Start) -> None:
    add_model(tmp_path, "double")
    add_model(tmp_path, "text", SAME, config=TEXT)
    server = start()
    assert server.live() and server.ready() and server.metadata()["name"] == "triton"
    models = server.models()
    assert set(models) == {("double", 1), ("text", 1)} and models["double"].version == -1
    (response,) = server.model("double").infer(inputs={"IN": ROW})
    assert np.from_dlpack(response.outputs["OUT"]).tolist() == [2, 4]
    assert (response.model.name, response.model.version, response.final) == ("double", 1, True)
    (response,) = models["text"].infer(inputs={"IN": ["héllo", b"x"]}, request_id="seven")
    assert response.outputs["OUT"].to_string_array().tolist() == ["héllo", "x"]
    assert response.outputs["OUT"].to_bytes_array().tolist() == ["héllo".encode(), b"x"]
    assert response.request_id == "seven"
    model = server.model("double")
    assert model.ready() and model.metadata()["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1]}]
    assert model.config()["input"][0]["data_type"] == "TYPE_FP32"
    assert model.statistics()["model_stats"][0]["inference_stats"]["success"]["count"] == 1
    assert model.batch_properties() is tritonserver.ModelBatchFlag.UNKNOWN
    assert model.transaction_properties() is tritonserver.ModelTxnPropertyFlag.ONE_TO_ONE


def test_responses_come_by_iterators_and_queues(tmp_path: Path, start: Start) -> None:
    execute = """
    for request in requests:
        sender = request.get_response_sender()
        for value in _in(request):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    add_model(tmp_path, "each", execute, config=FP32 + DECOUPLED)
    model = start().model("each")
    assert model.transaction_properties() is tritonserver.ModelTxnPropertyFlag.DECOUPLED
    copies: queue.SimpleQueue[tritonserver.InferenceResponse] = queue.SimpleQueue()
    request = model.create_request(inputs={"IN": ROW}, response_queue=copies)
    responses = list(model.infer(request))
    found = [np.from_dlpack(r.outputs["OUT"]).tolist() for r in responses if r.outputs]
    assert found == [[1], [2]] and [r.final for r in responses] == [False, False, True]
    assert [copies.get(timeout=60).final for _ in range(3)] == [False, False, True]

    async def collect() -> list[Any]:
        responses = model.async_infer(inputs={"IN": ROW})
        return [np.from_dlpack(r.outputs["OUT"]).tolist() async for r in responses if r.outputs]

    assert asyncio.run(collect()) == [[1], [2]]
    with pytest.raises(tritonserver.InvalidArgumentError, match="SimpleQueue"):
        model.infer(inputs={"IN": ROW}, response_queue=asyncio.Queue())


def test_errors_have_the_names_of_triton(tmp_path: Path, start: Start) -> None:
    add_model(tmp_path, "broken", "raise ValueError('no')")
    server = start()
    with pytest.raises(tritonserver.NotFoundError, match="'nobody' is not found"):
        next(server.model("nobody").infer(inputs={}))
    with pytest.raises(tritonserver.InvalidArgumentError):
        next(server.model("broken").infer(inputs={"IN": np.ones(2, np.int64)}))
    with pytest.raises(tritonserver.InternalError, match="ValueError: no") as raised:
        list(server.model("broken").infer(inputs={"IN": ROW}))
    assert raised.value.args[1].final  # the response
    (response,) = server.model("broken").infer(inputs={"IN": ROW}, raise_on_error=False)
    assert isinstance(response.error, tritonserver.InternalError)
    assert issubclass(tritonserver.UnavailableError, tritonserver.TritonError)
    with pytest.raises(tritonserver.InvalidArgumentError, match="already started"):
        server.start()
    server.stop()
    with pytest.raises(tritonserver.InvalidArgumentError, match="not started"):
        server.model("broken")
    with pytest.raises(tritonserver.InvalidArgumentError, match="unexpected keyword"):
        tritonserver.Server(model_repositories="x")
    with pytest.raises(tritonserver.InvalidArgumentError, match="must be specified"):
        tritonserver.Server().start()


def test_a_model_that_fails_at_the_start_ends_it_unless_that_is_allowed(tmp_path: Path, start: Start) -> None:
    add_model(tmp_path, "good")
    add_model(tmp_path, "bad", initialize="raise OSError('gone')")
    with pytest.raises(tritonserver.InternalError, match=r"(?s)failed to load all models.*gone"):
        start()
    explicit = tritonserver.ModelControlMode.EXPLICIT
    with pytest.raises(
        tritonserver.InternalError, match=r"(?s)\Afailed to load all models\nnobody: [^\n]*\Z"
    ):
        start(model_control_mode=explicit, startup_models=["nobody"])  # says nothing of what nobody asked for
    server = start(exit_on_error=False, strict_readiness=False)
    assert set(server.models(exclude_not_ready=True)) == {("good", 1)}
    assert "gone" in str(server.models()[("bad", 1)].reason)


def test_models_are_loaded_from_several_repositories_with_other_configurations(
    tmp_path: Path, start: Start
) -> None:
    add_model(tmp_path, "m")
    other = tmp_path.parent / f"{tmp_path.name}-other"
    add_model(other, "n")
    server = start(model_control_mode=tritonserver.ModelControlMode.EXPLICIT, startup_models=["m"])
    config = server.model("m").config() | {"max_batch_size": 4}
    assert server.load("m", {"config": json.dumps(config)}).batch_properties().name == "FIRST_DIM"
    files: dict[str, str | int | bool | bytes] = {
        "config": json.dumps(server.model("m").config() | {"max_batch_size": 0}),
        "file:1/model.py": source(SAME).encode(),
    }
    server.load("m", files)
    assert np.from_dlpack(next(server.model("m").infer(inputs={"IN": ROW})).outputs["OUT"]).tolist() == [1, 2]
    with pytest.raises(tritonserver.InternalError, match="failed to load 'n'"):
        server.load("n")
    server.register_model_repository(str(other))
    assert server.load("n").ready()
    with pytest.raises(tritonserver.AlreadyExistsError):
        server.register_model_repository(str(other))
    server.unload("n", wait_until_unloaded=True)
    assert set(server.models(exclude_not_ready=True)) == {("m", 1)}
    server.unregister_model_repository(str(other))
    with pytest.raises(tritonserver.NotFoundError):
        server.unregister_model_repository(str(other))


def test_polling_applies_what_has_changed(tmp_path: Path, start: Start) -> None:
    add_model(tmp_path, "m")
    server = start(model_control_mode=tritonserver.ModelControlMode.POLL)
    add_model(tmp_path, "n", SAME)
    server.poll_model_repository()
    assert set(server.models(exclude_not_ready=True)) == {("m", 1), ("n", 1)}
    with pytest.raises(tritonserver.UnsupportedError):
        server.register_model_repository(str(tmp_path))


def test_tensors_share_memory_by_dlpack() -> None:
    array = np.arange(60_000, dtype=np.int16).reshape(2, 30_000)
    for tensor in (tritonserver.Tensor.from_dlpack(array), tritonserver.Tensor.from_object(array)):
        assert (tensor.data_ptr, tensor.size) == (array.ctypes.data, 120_000)
        assert (tensor.data_type, list(tensor.shape)) == (tritonserver.DataType.INT16, [2, 30_000])
        assert (tensor.memory_type, tensor.memory_type_id) == (tritonserver.MemoryType.CPU, 0)
        assert np.from_dlpack(tensor).tolist() == array.tolist()
    assert tensor.to_host() is tensor and tensor.to_device((tritonserver.DLDeviceType.kDLCPU, 0)) is tensor
    torch = pytest.importorskip("torch")
    bf16 = tritonserver.Tensor.from_dlpack(torch.ones(2, dtype=torch.bfloat16))
    assert bf16.data_type is tritonserver.DataType.BF16
    assert torch.equal(torch.from_dlpack(bf16), torch.ones(2, dtype=torch.bfloat16))
    if not torch.cuda.is_available():
        with pytest.raises(tritonserver.UnsupportedError, match="not supported"):
            tensor.to_device("gpu:0")
    with pytest.raises(tritonserver.InvalidArgumentError, match="'tpu'"):
        tensor.to_device("tpu")
    text = tritonserver.Tensor.from_string_array(np.array([["a"], ["bc"]]))
    assert text.to_string_array().tolist() == [["a"], ["bc"]]
    with pytest.raises(tritonserver.UnsupportedError, match="to_bytes_array"):
        np.from_dlpack(text)
    with pytest.raises(tritonserver.InvalidArgumentError, match="not strings"):
        tritonserver.Tensor.from_bytes_array([1])


def test_fronts_answer_clients_and_tell_custom_metrics_once(tmp_path: Path, start: Start) -> None:
    counts = "self.made = pb_utils.MetricFamily('made_total', 'Made', pb_utils.MetricFamily.COUNTER)\n"
    counts += "self.made.Metric(labels={'of': args['model_name']}).increment(2)"
    for name in ("one", "two"):
        add_model(tmp_path, name, initialize=counts)
    server = start()
    family = tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "of_program", "Of the program")
    metric = tritonserver.Metric(family, {"a": "b"})
    metric.set_value(2)
    metric.increment(1.5)
    assert metric.value == 3.5
    http, grpc, metrics = (free_port() for _ in range(3))
    with (
        tritonserver.KServeHttp(server, tritonserver.KServeHttp.Options(port=http)),
        tritonserver.KServeGrpc(server, tritonserver.KServeGrpc.Options(port=grpc)),
        tritonserver.Metrics(server, tritonserver.Metrics.Options(port=metrics)),
    ):
        for module, port in ((tritonclient.http, http), (tritonclient.grpc, grpc)):
            with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
                given = module.InferInput("IN", [2], "FP32")
                given.set_data_from_numpy(ROW)
                assert client.infer("one", [given]).as_numpy("OUT").tolist() == [2, 4]
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=5) as page:
            found = page.read().decode()
        assert 'nv_inference_request_success{model="one",version="1"} 2' in found
        assert 'made_total{of="one"} 2\n' in found and 'of_program{a="b"} 3.5' in found
        with pytest.raises(tritonserver.UnavailableError, match="already in use"):
            tritonserver.KServeHttp(server, tritonserver.KServeHttp.Options(port=http)).start()
    assert 'of_program{a="b"} 3.5' in server.metrics()
    with pytest.raises(tritonserver.InvalidArgumentError, match="must be of type"):
        tritonserver.KServeHttp(server, tritonserver.Metrics.Options())


def test_options_become_the_settings_of_a_server(tmp_path: Path) -> None:
    options = tritonserver.Options(
        [str(tmp_path)],
        rate_limiter_mode=tritonserver.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[tritonserver.RateLimiterResource("R", 2, 0)],
        cache_config={"local": {"size": 1 << 20}},
        backend_configuration={"python": {"a": "b"}},
        host_policies={"p": {"numa-node": "0"}},
        metrics_configuration={"": {"summary_latencies": "true"}},
        log_verbose=1,
        log_format=tritonserver.LogFormat.ISO8601,
    )
    settings = options.settings()
    assert settings.rate_limiter.limits == {0: {"R": 2}}
    assert settings.cache == {"local": {"size": str(1 << 20)}}
    assert settings.backends.config == {"python": {"a": "b"}}
    assert settings.devices.host_policies == {"p": {"numa-node": "0"}}
    assert settings.metrics.config.summaries
    assert (settings.log.log_verbose_level, settings.log.log_error, settings.log.log_format) == (
        1,
        True,
        "ISO8601",
    )
