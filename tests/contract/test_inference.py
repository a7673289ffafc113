"""What a request may ask for beside its tensors, and what a response says beside its own."""

import threading

import numpy as np
import pytest

from tests.contract.conftest import Addresses
from tests.contract.drivers import Driver, Input, Output, open_driver
from tests.contract.samples import check_simple, check_sum_and_difference, image_batch, simple_inputs
from tests.expressions import documented, expressions, names
from tests.server import Server

NET = "efficientnet_lite0_onnx"
FAILURES = {"nereid_model_load_failure", "nereid_rollout_failure"}
"""Families of /metrics without a series until something has failed."""


@pytest.mark.parametrize("rows", range(1, 9))
def test_simple(client: Driver, rows: int) -> None:
    check_simple(client, rows)


def test_order_of_inputs_does_not_matter(client: Driver) -> None:
    inputs = simple_inputs()
    check_sum_and_difference(client.infer("simple", inputs[::-1]), inputs)


def test_response_names_model_and_version(client: Driver) -> None:
    response = client.infer("simple", simple_inputs())
    assert (response.model_name, response.model_version) == ("simple", "1")


@pytest.mark.parametrize("request_id", ["", "7", 'an id with spaces, \u00fcmlauts and "quotes"', "x" * 1000])
def test_request_id_comes_back(client: Driver, request_id: str) -> None:
    assert client.infer("simple", simple_inputs(), request_id=request_id).id == request_id


def test_http_response_without_id_has_no_such_key(http_client: Driver) -> None:
    response = http_client.infer("simple", simple_inputs())
    assert "id" not in response._fields


@pytest.mark.parametrize("names", [["OUTPUT0"], ["OUTPUT1"], ["OUTPUT1", "OUTPUT0"]])
def test_only_requested_outputs_come(client: Driver, names: list[str]) -> None:
    response = client.infer("simple", simple_inputs(), [Output(name) for name in names])
    assert sorted(response.names) == sorted(names)


def test_all_outputs_come_when_none_is_requested(client: Driver) -> None:
    assert client.infer("simple", simple_inputs()).names == ["OUTPUT0", "OUTPUT1"]


@pytest.mark.parametrize(("version", "served"), [("", "2"), ("1", "1"), ("2", "2")])
def test_version_of_the_request_or_the_latest(client: Driver, version: str, served: str) -> None:
    response = client.infer(NET, [image_batch(1)], model_version=version)
    assert response.model_version == served


def labels_of(row: np.ndarray, texts: np.ndarray) -> None:
    """Classes of one row: best first, with value, index and label."""
    order = np.argsort(-row, kind="stable")[: len(texts)]
    for text, index in zip(texts, order, strict=True):
        value, position, label = text.decode().split(":", 2)
        assert int(position) == index
        assert value == f"{row[index]:f}"
        assert label


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("count", [1, 5])
def test_classification_with_labels(client: Driver, rows: int, count: int) -> None:
    # A batch of noise twice: once for the numbers, once for their ranking.
    image = image_batch(rows)
    plain = client.infer(NET, [image], [Output("probabilities")]).array("probabilities")
    response = client.infer(NET, [image], [Output("probabilities", classes=count)])
    output = response.output("probabilities")
    assert (output["datatype"], output["shape"]) == ("BYTES", [rows, count])
    for row, texts in zip(plain, response.array("probabilities"), strict=True):
        labels_of(row, texts)


def test_first_labels_of_the_example_model(client: Driver) -> None:
    classes = client.infer(NET, [image_batch(1)], [Output("probabilities", classes=1000)])
    by_index = dict(text.decode().split(":", 2)[1:] for text in classes.array("probabilities")[0])
    assert [by_index[index] for index in ("0", "1", "2")] == ["tench", "goldfish", "great white shark"]


def test_classification_without_labels(client: Driver) -> None:
    inputs = simple_inputs(2)
    response = client.infer("simple", inputs, [Output("OUTPUT0", classes=2), Output("OUTPUT1")])
    assert response.array("OUTPUT0").tolist() == [[b"16:15", b"15:14"], [b"32:15", b"31:14"]]
    np.testing.assert_array_equal(response.array("OUTPUT1"), inputs[0].array - inputs[1].array)


def test_classification_of_floats_prints_six_decimals(client: Driver) -> None:
    array = np.array([[0.5, -31.0, 1e9]], dtype=np.float32)
    response = client.infer("identity_fp32", [Input("INPUT0", array, "FP32")], [Output("OUTPUT0", classes=3)])
    assert response.array("OUTPUT0").tolist() == [[b"1000000000.000000:2", b"0.500000:0", b"-31.000000:1"]]


def test_more_classes_than_there_are(client: Driver) -> None:
    response = client.infer("simple", simple_inputs(), [Output("OUTPUT0", classes=99)])
    assert response.output("OUTPUT0")["shape"] == [1, 16]


def test_classification_in_json(http_client: Driver) -> None:
    outputs = [Output("OUTPUT0", classes=1, binary=False)]
    response = http_client.infer("simple", simple_inputs(), outputs)
    assert response.output("OUTPUT0")["data"] == ["16:15"]


def test_parameters_are_accepted(client: Driver) -> None:
    response = client.infer(
        "simple",
        simple_inputs(),
        parameters={"text": "v", "number": 3, "flag": True},
        priority=1,
        timeout=1_000_000,
    )
    check_sum_and_difference(response, simple_inputs())


def test_response_parameters_keep_their_types(client: Driver) -> None:
    array = np.zeros((1, 2), np.int32)
    parameters = client.infer("custom_identity_int32", [Input("INPUT0", array, "INT32")]).parameters
    assert parameters == {
        "param0": "an example string parameter",
        "param1": 42,
        "param2": False,
        "param3": pytest.approx(123.123),
    }


def samples(server: Server, name: str) -> dict[str, float]:
    """What `/metrics` says of a name, by its labels."""
    _, body = server.get("/metrics", port=server.metrics_port)
    lines = [line for line in body.decode().splitlines() if line.startswith(name + "{")]
    return {labels.removeprefix(name): float(value) for labels, value in map(str.split, lines)}


def test_the_identity_backend_counts_what_it_copies(http_client: Driver, nereid_server: Server) -> None:
    def count() -> float:
        counters = samples(nereid_server, "input_byte_size_counter")
        return counters['{model="custom_identity_int32",version="1"}']

    before = count()
    http_client.infer("custom_identity_int32", [Input("INPUT0", np.zeros((2, 3), np.int32), "INT32")])
    assert count() == before + 24


def test_what_dashboards_and_alerts_ask_for_is_there(http_client: Driver, nereid_server: Server) -> None:
    """All but what depends on settings, hardware or the kind of model. No family lacks in the reference."""
    http_client.infer("identity_fp32", [Input("INPUT0", np.zeros((1, 2), np.float32), "FP32")])
    _, body = nereid_server.get("/metrics", port=nereid_server.metrics_port)
    page = {line.partition("{")[0].split()[0] for line in body.decode().splitlines() if line[0] != "#"}
    reference = documented()
    asked = set().union(*(names(expr) for _, expr in expressions()))
    always = {name for name, (_, depends) in reference.items() if not depends} - FAILURES
    assert asked & always - page == set()
    assert {name for name in page if name.startswith(("nv_", "nereid_"))} - reference.keys() == set()
    histograms = {f"nereid_{kind}_duration_seconds_bucket" for kind in ("request", "queue", "compute")}
    assert histograms <= page


def test_metrics_tell_of_a_batch(client: Driver, nereid_server: Server) -> None:
    model = 'model="identity_fp32",version="1"'

    def state() -> tuple[float, float, float]:
        sizes = samples(nereid_server, "nereid_batch_size_bucket")
        releases = samples(nereid_server, "nereid_batch_release")
        released = sum(count for labels, count in releases.items() if 'model="identity_fp32"' in labels)
        return sizes[f'{{{model},le="4"}}'], sizes[f'{{{model},le="8"}}'], released

    tensor = Input("INPUT0", np.zeros((5, 2), np.float32), "FP32")
    client.infer("identity_fp32", [tensor])
    four, eight, released = state()
    client.infer("identity_fp32", [tensor])
    assert state() == (four, eight + 1, released + 1)
    assert samples(nereid_server, "nereid_queue_age_us")[f"{{{model}}}"] == 0


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_and_responses(client: Driver, algorithm: str) -> None:
    inputs = simple_inputs(8)
    options = (
        {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        if client.protocol == "http"
        else {"compression_algorithm": algorithm}
    )
    check_sum_and_difference(client.infer("simple", inputs, (), **options), inputs)


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_answers_go_to_whoever_asked(server: Addresses, name: str) -> None:
    """Several clients at once, each with numbers of its own."""
    wrong: list[int] = []

    def ask(number: int) -> None:
        array = np.full((1, 8), number, np.int32)
        with open_driver(name, *server) as client:
            for _ in range(25):
                response = client.infer("custom_identity_int32", [Input("INPUT0", array, "INT32")])
                if not np.array_equal(response.array("OUTPUT0"), array):
                    wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
