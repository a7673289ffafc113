"""The models of the example repository on real input, run without a server."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_wine
from tritonclient.grpc import model_config_pb2 as mc

from backends.base import Model
from backends.fil.backend import FilBackend
from tests.unit.backend_harness import Served, infer
from tests.unit.model_repository import fake_pb_utils
from tests.unit.model_repository.conftest import REPOSITORY, ROOT, Load, Run, labels
from tests.voice import CHUNK, CONTEXT, RATE, voice

Pixels = Callable[[str], npt.NDArray[np.float32]]
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))


def config_of(model: str) -> mc.ModelConfig:
    return text_format.Parse((REPOSITORY / model / "config.pbtxt").read_text(), mc.ModelConfig())


@pytest.mark.parametrize("model", MODELS)
def test_configuration(model: str) -> None:
    config = config_of(model)
    assert config.name == model
    assert [path for path in (REPOSITORY / model).iterdir() if path.name.isdigit()]
    for output in config.output:
        if output.label_filename:
            assert len(labels(model)) == output.dims[0]


def test_directory_holds_nothing_but_models() -> None:
    directories = {path.name for path in REPOSITORY.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert directories == set(MODELS)


@pytest.mark.parametrize(
    "model", [model for model in MODELS if "onnx" in config_of(model).backend + config_of(model).platform]
)
def test_configuration_agrees_with_the_onnx_file(model: str) -> None:
    config = config_of(model)
    for version in (path for path in (REPOSITORY / model).iterdir() if path.name.isdigit()):
        session = onnxruntime.InferenceSession(version / "model.onnx", providers=["CPUExecutionProvider"])
        inputs, outputs = session.get_inputs(), session.get_outputs()
        sequence = config.sequence_batching
        kept = {state.input_name for state in sequence.state} | {
            state.output_name for state in sequence.state
        }
        kept |= {control.name for control in sequence.control_input}
        for declared, values in ((config.input, inputs), (config.output, outputs)):
            actual = [value for value in values if value.name not in kept]
            assert [tensor.name for tensor in declared] == [value.name for value in actual]
            for tensor, value in zip(declared, actual, strict=True):
                dims = [-1] * (config.max_batch_size > 0) + list(tensor.dims)
                sizes = [size if isinstance(size, int) else -1 for size in value.shape]
                assert dims == (sizes or [1])


@pytest.mark.parametrize(
    ("model", "dtype"), [("simple", np.int32), ("simple_int8", np.int8), ("simple_string", np.object_)]
)
def test_simple(run_onnx: Run, model: str, dtype: type[np.generic]) -> None:
    left, right = np.arange(32).reshape(2, 16), np.full((2, 16), 3)

    def wire(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values.astype(str).astype(object) if dtype is np.object_ else values.astype(dtype)

    total, difference = run_onnx(f"{model}/1", INPUT0=wire(left), INPUT1=wire(right))
    assert total.tolist() == wire(left + right).tolist()
    assert difference.tolist() == wire(left - right).tolist()


@pytest.mark.parametrize(
    ("picture", "label", "at_least"), [("coffee.jpg", "espresso", 0.9), ("cat.jpg", "Egyptian cat", 0.3)]
)
def test_efficientnet_recognises_a_picture(
    run_onnx: Run, pixels: Pixels, picture: str, label: str, at_least: float
) -> None:
    (probabilities,) = run_onnx("efficientnet_lite0_onnx/1", input=pixels(picture))
    assert probabilities.shape == (1, 1000)
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    assert labels("efficientnet_lite0_onnx")[probabilities[0].argmax()] == label
    assert probabilities.max() > at_least


def test_efficientnets_agree(run_onnx: Run, pixels: Pixels) -> None:
    batch = np.concatenate([pixels("coffee.jpg"), pixels("cat.jpg")])
    (first,) = run_onnx("efficientnet_lite0_onnx/1", input=batch)
    (second,) = run_onnx("efficientnet_lite0_onnx/2", input=batch)
    load: Any = torch.jit.load
    traced = load(str(REPOSITORY / "efficientnet_lite0_torchscript/1/model.pt"))
    with torch.inference_mode():
        third = traced(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(third, first, atol=1e-5)
    np.testing.assert_allclose(second, first, atol=1e-3)
    alone = [run_onnx("efficientnet_lite0_onnx/1", input=batch[i : i + 1])[0][0] for i in range(2)]
    np.testing.assert_allclose(np.stack(alone), first, atol=1e-5)


def test_forest_knows_the_wines() -> None:
    rows, wines = load_wine(return_X_y=True)
    model = Model(config_of("wine_forest"), 1, REPOSITORY / "wine_forest")
    (call,) = Served(FilBackend, model)(infer({"input__0": rows.astype(np.float32)}))
    shares, reasons = call.arrays["output__0"], call.arrays["treeshap_output"]
    assert (shares.argmax(axis=1) == wines).mean() > 0.99
    np.testing.assert_allclose(reasons.sum(axis=2), shares, atol=1e-5)


PHRASES = [
    ("English", "Where can I buy a ticket for the train?"),
    ("German", "Wo kann ich eine Fahrkarte kaufen?"),
    ("French", "Je voudrais un billet pour Paris, merci."),
    ("Spanish", "¿A qué hora sale el tren de la mañana?"),
    ("Italian", "Vorrei un biglietto per Roma."),
    ("Dutch", "Ik wil graag een kaartje naar Utrecht."),
]


def test_language_is_recognised_in_sentences_it_was_not_trained_on(load_python: Load) -> None:
    corpus = (REPOSITORY / "language/corpus.txt").read_text(encoding="utf-8")
    texts = np.array([[text.encode()] for _, text in PHRASES], dtype=object)
    (response,) = load_python("language").execute([fake_pb_utils.Request(text=texts)])
    assert response.outputs["language"].ravel().tolist() == [name for name, _ in PHRASES]
    assert response.outputs["probability"].shape == (len(PHRASES), 1)
    assert not any(text in corpus for _, text in PHRASES)


def test_language_of_what_is_no_text_is_some_language(load_python: Load) -> None:
    texts = np.array([[b""], [b"\xff\xfe 123"], [b"x" * 100_000]], dtype=object)
    (response,) = load_python("language").execute([fake_pb_utils.Request(text=texts)])
    assert np.isfinite(response.outputs["probability"]).all()


def picture_of(text: str, height: int, width: int) -> npt.NDArray[np.float32]:
    """Black text on white, [1, 3, height, width], from -1 to 1 as PP-OCR expects."""
    image = Image.new("RGB", (width, height), "white")
    font = ImageFont.load_default(size=round(height * 0.7))
    ImageDraw.Draw(image).text((8, height // 2), text, "black", font, anchor="lm")
    array = np.asarray(image, np.float32).transpose(2, 0, 1)[np.newaxis]
    result: npt.NDArray[np.float32] = array / 127.5 - 1
    return result


def test_rapidocr_finds_text_where_there_is_some(run_onnx: Run) -> None:
    page = np.ones((1, 3, 192, 320), np.float32)
    page[:, :, 64:112, :] = picture_of("Hello, Triton 2026", 48, 320)
    (probability,) = run_onnx("rapidocr_det/1", x=page)
    assert probability.shape == (1, 1, 192, 320)
    rows = np.flatnonzero((probability[0, 0] > 0.5).any(axis=1))
    assert 60 <= rows.min() < rows.max() <= 116
    assert (run_onnx("rapidocr_det/1", x=np.ones_like(page))[0] < 0.3).all()


@pytest.mark.parametrize("text", ["Hello, Triton 2026", "Nereid serves models"])
def test_rapidocr_reads_a_line(run_onnx: Run, text: str) -> None:
    (scores,) = run_onnx("rapidocr_rec/1", x=picture_of(text, 48, 384))
    alphabet = (REPOSITORY / "rapidocr_rec/1/characters.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert scores.shape[2] == len(alphabet) + 1
    best = scores[0].argmax(axis=1)
    kept = [k for k, before in zip(best, [0, *best[:-1]], strict=True) if k not in (0, before)]
    assert "".join(alphabet[k - 1] for k in kept) == text


def speech_probabilities(run_onnx: Run, sound: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros((1, CONTEXT), np.float32)
    found = []
    for chunk in sound[: len(sound) // CHUNK * CHUNK].reshape(-1, 1, CHUNK):
        window = np.concatenate([context, chunk], axis=1)
        probability, state = run_onnx("silero_vad/1", input=window, state=state, sr=np.array(RATE, np.int64))
        context = chunk[:, -CONTEXT:]
        found.append(probability[0, 0])
    return np.array(found)


def test_silero_tells_a_voice_from_silence_and_noise(run_onnx: Run) -> None:
    noise = np.random.default_rng(1).normal(0, 0.05, RATE * 2).astype(np.float32)
    assert speech_probabilities(run_onnx, voice(3)).max() > 0.9
    assert speech_probabilities(run_onnx, np.zeros(RATE * 2, np.float32)).max() < 0.1
    assert speech_probabilities(run_onnx, noise).max() < 0.1


def test_silero_agrees_with_its_library(run_onnx: Run) -> None:
    from silero_vad import load_silero_vad

    library, sound = load_silero_vad(onnx=True), voice(1)
    expected = [
        library(torch.from_numpy(sound[start : start + CHUNK]), RATE).item()
        for start in range(0, len(sound) - CHUNK + 1, CHUNK)
    ]
    np.testing.assert_allclose(speech_probabilities(run_onnx, sound), expected, atol=1e-5)


def file_features(content: bytes) -> npt.NDArray[np.int32]:
    """Magika's input: the first and the last 1024 bytes, stripped of blanks and padded with 256."""
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    features = np.full((1, 2048), 256, np.int32)
    features[0, : len(first)] = list(first)
    features[0, 2048 - len(last) :] = list(last)
    return features


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("app/settings/settings.py", "python"),
        ("Makefile", "makefile"),
        ("serve_config.yaml", "yaml"),
        ("pyproject.toml", "toml"),
        ("tests/data/cat.jpg", "jpeg"),
    ],
)
def test_magika_agrees_with_its_library(run_onnx: Run, file: str, label: str) -> None:
    from magika import Magika

    content = (ROOT / file).read_bytes()
    (scores,) = run_onnx("magika/1", bytes=file_features(content))
    answer = Magika().identify_bytes(content)
    assert labels("magika")[scores[0].argmax()] == label == answer.dl.label
    assert scores.max() == pytest.approx(answer.score, abs=1e-4)


@pytest.fixture
def builder() -> Any:
    spec = importlib.util.spec_from_file_location("example_builder", REPOSITORY / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_builder_leaves_nothing_unfinished(builder: Any, tmp_path: Path) -> None:
    def fails(target: Path) -> None:
        target.write_text("half")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        builder.build(tmp_path / "model.onnx", fails)
    assert list(tmp_path.iterdir()) == []


def test_builder_refuses_another_file(builder: Any) -> None:
    with pytest.raises(SystemExit, match="is not the expected file"):
        builder.packaged("magika", "models/standard_v3_3/model.onnx", "0" * 64)
    with pytest.raises(SystemExit, match="package 'no_such_package' is not installed"):
        builder.packaged("no_such_package", "x", "")


def test_builder_leaves_what_is_there_alone(builder: Any, capsys: pytest.CaptureFixture[str]) -> None:
    builder.build_all(REPOSITORY, builder.RECIPES, [])
    assert capsys.readouterr().out == ""
