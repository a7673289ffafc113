"""Health, metadata, configuration, statistics: the answers of both protocols say the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from tests.contract.conftest import Addresses
from tests.contract.drivers import Driver, Input, Refused, open_driver
from tests.contract.samples import check_simple, simple_inputs

MODELS = [
    "simple",
    "simple_int8",
    "simple_string",
    "simple_identity",
    "identity_fp32",
    "custom_identity_int32",
    "repeat_int32",
    "square_int32",
    "efficientnet_lite0_onnx",
    "identity_all",
]
EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]


@pytest.fixture(scope="module")
def both(server: Addresses) -> Iterator[Any]:
    """An HTTP and a gRPC client."""
    with open_driver("http", *server) as http, open_driver("grpc", *server) as grpc:
        yield http, grpc


def test_server_is_live_and_ready(client: Driver) -> None:
    assert client.call("is_server_live")
    assert client.call("is_server_ready")


def test_server_metadata(client: Driver) -> None:
    metadata = client.describe("get_server_metadata")
    assert metadata["name"] == "triton"
    assert metadata["version"].split(".")[0] == "2"
    assert metadata["extensions"] == EXTENSIONS


@pytest.mark.parametrize("model", MODELS)
def test_model_is_ready(client: Driver, model: str) -> None:
    assert client.call("is_model_ready", model)
    assert client.call("is_model_ready", model, "1")


def test_unknown_model_is_not_ready(client: Driver) -> None:
    assert not client.call("is_model_ready", "nobody")
    assert not client.call("is_model_ready", "simple", "9")


def test_model_metadata(client: Driver) -> None:
    metadata = ParseDict(client.describe("get_model_metadata", "simple"), pb.ModelMetadataResponse())
    assert (metadata.name, list(metadata.versions)) == ("simple", ["1"])
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("OUTPUT0", "INT32", [-1, 16]),
        ("OUTPUT1", "INT32", [-1, 16]),
    ]


def test_metadata_of_an_unbatched_model_has_no_batch_dimension(client: Driver) -> None:
    metadata = ParseDict(client.describe("get_model_metadata", "square_int32"), pb.ModelMetadataResponse())
    assert [list(t.shape) for t in metadata.inputs] == [[1]]


def test_metadata_names_all_versions_or_the_one_asked_for(client: Driver) -> None:
    model = "efficientnet_lite0_onnx"
    assert client.describe("get_model_metadata", model)["versions"] == ["1", "2"]
    assert client.describe("get_model_metadata", model, "1")["versions"] == ["1"]


@pytest.mark.parametrize("model", MODELS)
def test_metadata_is_the_same_over_both_protocols(both: Any, model: str) -> None:
    http, grpc = (
        ParseDict(c.describe("get_model_metadata", model), pb.ModelMetadataResponse()) for c in both
    )
    assert http == grpc


@pytest.mark.parametrize("model", MODELS)
def test_configuration_is_the_same_over_both_protocols(both: Any, model: str) -> None:
    http, grpc = both
    from_http = ParseDict(http.describe("get_model_config", model), mc.ModelConfig())
    assert from_http == grpc.call("get_model_config", model).config
    assert from_http.name == model


def test_http_configuration_writes_defaults_and_numbers(http_client: Driver) -> None:
    config = http_client.describe("get_model_config", "simple")
    assert config["max_batch_size"] == 8
    assert config["input"][0]["dims"] == [16]
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert config["input"][0]["optional"] is False
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["default_model_filename"]


@pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config"])
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("nobody",), "Request for unknown model: 'nobody' is not found"),
        (("simple", "99"), "Request for unknown model: 'simple' version 99 is not found"),
    ],
)
def test_descriptions_of_the_unknown(client: Driver, method: str, args: tuple[str, ...], text: str) -> None:
    with pytest.raises(Refused) as caught:
        client.describe(method, *args)
    assert caught.value.refusal == ("404" if client.protocol == "http" else "NOT_FOUND", text)
    check_simple(client)


def test_repository_index(both: Any) -> None:
    http, grpc = both
    rows = {(row["name"], row["version"]): row["state"] for row in http.call("get_model_repository_index")}
    index = grpc.call("get_model_repository_index")
    assert rows == {(model.name, model.version): model.state for model in index.models}
    assert {name for name, _ in rows} >= set(MODELS)
    assert rows["simple", "1"] == "READY"


def statistics(client: Driver, model: str, version: str = "") -> pb.ModelStatistics:
    answer = ParseDict(
        client.describe("get_inference_statistics", model, version), pb.ModelStatisticsResponse()
    )
    (only,) = answer.model_stats
    return only


def test_statistics_count_requests_and_rows(client: Driver) -> None:
    before = statistics(client, "simple_int8")
    array = np.ones((3, 16), np.int8)
    for _ in range(4):
        client.infer("simple_int8", [Input("INPUT0", array, "INT8"), Input("INPUT1", array, "INT8")])
    after = statistics(client, "simple_int8")
    assert (after.name, after.version) == ("simple_int8", "1")
    assert after.inference_count - before.inference_count == 12
    assert after.execution_count - before.execution_count == 4
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        counted = getattr(after.inference_stats, part), getattr(before.inference_stats, part)
        assert counted[0].count - counted[1].count == 4, part
        assert counted[0].ns >= counted[1].ns, part
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert after.last_inference > before.last_inference - 1
    batches = {row.batch_size: row.compute_infer.count for row in after.batch_stats}
    known = {row.batch_size: row.compute_infer.count for row in before.batch_stats}
    assert batches[3] - known.get(3, 0) == 4


def test_statistics_are_the_same_over_both_protocols(both: Any) -> None:
    both[0].infer("simple", simple_inputs())
    assert statistics(both[0], "simple") == statistics(both[1], "simple")


def test_statistics_of_all_models(client: Driver) -> None:
    answer = ParseDict(client.describe("get_inference_statistics"), pb.ModelStatisticsResponse())
    assert {row.name for row in answer.model_stats} >= set(MODELS)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("nobody",), "requested model 'nobody' is not available"),
        (("simple", "99"), "requested model version is not available for model 'simple'"),
    ],
)
def test_statistics_of_the_unknown(client: Driver, args: tuple[str, ...], text: str) -> None:
    with pytest.raises(Refused) as caught:
        client.describe("get_inference_statistics", *args)
    assert caught.value.refusal == ("400" if client.protocol == "http" else "INVALID_ARGUMENT", text)
