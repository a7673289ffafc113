"""Requests whose model must be loaded before they can be read, over gRPC."""

import tritonclient.grpc as client

from tests.unit.app.ingress.grpc_running import Running, Stream, int_input, refusal


def test_a_request_is_read_when_its_model_is_loaded(
    server: Running, triton: client.InferenceServerClient
) -> None:
    server.service.idle = {"echo"}
    assert triton.infer("echo", [int_input(1, 2)]).as_numpy("OUTPUT").tolist() == [[1, 2]]


def test_the_reason_of_a_failed_load_answers_a_request(triton: client.InferenceServerClient) -> None:
    wanted = ("StatusCode.UNAVAILABLE", "failed to load 'unloadable'")
    assert refusal(lambda: triton.infer("unloadable", [int_input(1)])) == wanted


def test_descriptions_load_the_model(server: Running, triton: client.InferenceServerClient) -> None:
    server.service.idle = {"echo"}
    assert triton.get_model_config("echo").config.max_batch_size == 8
    server.service.idle = {"echo"}
    assert triton.get_model_metadata("echo").name == "echo"
    assert server.service.idle == set()


def test_requests_of_a_stream_keep_their_order(server: Running, triton: client.InferenceServerClient) -> None:
    server.service.idle = {"echo"}
    stream = Stream(triton)
    stream.send("echo", "1")
    stream.send("unloadable", "2")
    stream.send("echo", "3")
    assert stream.next_values(1) == [("1", 5)]
    assert "failed to load 'unloadable'" in str(stream.next())
    assert stream.next_values(1) == [("3", 5)]
