"""Ensembles as clients see them: a picture to a label, many responses through a second model."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.contract.drivers import Driver, GrpcDriver, Input, Output, Refused, Response, StreamRequest
from tests.contract.samples import repeat
from tests.server import Server

PICTURES = Path(__file__).parent.parent / "data"
ENSEMBLE = "efficientnet_ensemble"


def picture(*names: str) -> Input:
    files = [[(PICTURES / name).read_bytes()] for name in names]
    return Input("image", np.array(files, dtype=np.object_), "BYTES")


def test_a_picture_to_its_label(client: Driver) -> None:
    response = client.infer(ENSEMBLE, [picture("coffee.jpg")], [Output("probabilities", classes=1)])
    (label,) = response.array("probabilities").ravel()
    assert label.decode().split(":")[2] == "espresso"
    assert (response.model_name, response.model_version) == (ENSEMBLE, "1")


def test_a_batch_of_pictures(client: Driver) -> None:
    response = client.infer(ENSEMBLE, [picture("coffee.jpg", "cat.jpg")], request_id="7")
    assert response.array("probabilities").shape == (2, 1000)
    assert response.id == "7"
    assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


def test_what_a_step_objects_to(client: Driver) -> None:
    bad = Input("image", np.array([[b"no picture"]], dtype=np.object_), "BYTES")
    with pytest.raises(Refused) as caught:
        client.infer(ENSEMBLE, [bad])
    text = f"in ensemble '{ENSEMBLE}', input 'image': expected a JPEG or PNG file"
    assert caught.value.refusal.text == text


def test_what_the_ensemble_objects_to(client: Driver) -> None:
    with pytest.raises(Refused, match="unexpected inference input 'picture' for model"):
        client.infer(ENSEMBLE, [Input("picture", np.zeros((1, 1), np.float32), "FP32")])


def page(*lines: str) -> Input:
    """A picture with lines of text below each other."""
    image = Image.new("RGB", (480, 60 * len(lines) + 40), "white")
    for number, text in enumerate(lines):
        ImageDraw.Draw(image).text((20, 60 * number + 20), text, "black", ImageFont.load_default(40))
    file = io.BytesIO()
    image.save(file, "PNG")
    return Input("image", np.array([file.getvalue()], dtype=np.object_), "BYTES")


@pytest.mark.parametrize("lines", [("Nereid reads", "page 42"), ()])
def test_a_picture_to_its_text(client: Driver, lines: tuple[str, ...]) -> None:
    response = client.infer("ocr_ensemble", [page(*lines)])
    assert [text.decode() for text in response.array("text")] == list(lines)
    assert response.array("boxes").shape == (len(lines), 4)


@pytest.mark.parametrize(("name", "faces"), [("astronaut.jpg", 1), ("cat.jpg", 0)])
def test_a_picture_to_its_faces(client: Driver, name: str, faces: int) -> None:
    """By a model that decodes and calls the network, not by an ensemble."""
    image = Input("image", np.array([(PICTURES / name).read_bytes()], dtype=np.object_), "BYTES")
    response = client.infer("faces", [image])
    found = [response.array(output) for output in ("boxes", "scores", "classes", "landmarks")]
    assert [array.shape for array in found] == [(faces, 4), (faces,), (faces,), (faces, 5, 2)]
    assert np.allclose(found[0], [[180, 58, 271, 176]], atol=3) or not faces


def test_descriptions(client: Driver) -> None:
    metadata = client.describe("get_model_metadata", ENSEMBLE)
    assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
    assert client.call("is_model_ready", ENSEMBLE)
    config = client.describe("get_model_config", ENSEMBLE)
    config = config.get("config", config)
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == [
        "image_preprocess",
        "efficientnet_lite0_onnx",
    ]


def test_statistics_count_the_ensemble_and_its_steps(client: Driver) -> None:
    def successes(model: str) -> int:
        found = client.describe("get_inference_statistics", model)["model_stats"]
        return sum(int(one["inference_stats"]["success"].get("count", 0)) for one in found)

    models = (ENSEMBLE, "image_preprocess", "efficientnet_lite0_onnx")
    before = [successes(model) for model in models]
    client.infer(ENSEMBLE, [picture("cat.jpg")])
    assert [successes(model) for model in models] == [count + 1 for count in before]


def test_metrics_show_the_ensemble(nereid_server: Server) -> None:
    _, page = nereid_server.get("/metrics", port=nereid_server.metrics_port)
    assert f'nv_inference_request_success{{model="{ENSEMBLE}",version="1"}}'.encode() in page


def test_each_response_of_a_decoupled_step_runs_the_rest(grpc_client: GrpcDriver) -> None:
    request = repeat([4, 2, 0, 1], "3")
    responses = grpc_client.responses([StreamRequest("repeat_ensemble", request.inputs, (), request.options)])
    assert all(isinstance(response, Response) for response in responses), responses
    assert [int(r.array("OUT")[0]) for r in responses] == [4, 2, 0, 1]
    assert [int(r.array("IDX")[0]) for r in responses] == [0, 1, 2, 3]
    assert {r.id for r in responses} == {"3"}
