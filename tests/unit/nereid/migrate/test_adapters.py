"""Migrated models answer as their handlers and frameworks do."""

import io
import json
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LinearRegression, LogisticRegression
from tritonclient.grpc import model_config_pb2 as mc

from nereid.engine.engine import Engine
from nereid.migrate import bentoml, mlserver, torchserve
from nereid.migrate.writing import write
from tests.unit.nereid.migrate.sources import archive, migrated

COLOUR = (200, 100, 50)
ROWS = np.array([[0, 1], [2, 3], [4, 9], [9, 1]], np.float32)
LOGISTIC = LogisticRegression().fit(ROWS, [0, 1, 1, 0])
LINEAR = LinearRegression().fit(ROWS, np.array([0, 1, 1, 0], np.float32))
FUNCTION = """
def entry(data, context):
    if data is None:
        return None
    return [context.get_request_header(0, "Content-Type") + " " + row["text"] for row in data]
"""


class Means(torch.nn.Module):
    """Ten scores made of the means of the colours."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.mean(dim=(2, 3)).repeat(1, 4)[:, :10] * torch.arange(10)


def pictures(directory: Path) -> Path:
    weights = directory / "means.pt"
    torch.jit.trace(Means(), torch.zeros(1, 3, 224, 224)).save(str(weights))  # type: ignore[no-untyped-call]
    made = archive(
        directory / "pictures.mar",
        modelName="pictures",
        handler="image_classifier",
        serializedFile="means.pt",
    )
    with zipfile.ZipFile(made, "a") as packed:
        packed.write(weights, "means.pt")
        packed.writestr(
            "index_to_name.json", json.dumps({str(each): ["id", f"class{each}"] for each in range(10)})
        )
    return made


def bento(directory: Path) -> None:
    """Write a Bento of one model of scikit-learn."""
    model = directory / "models" / "of_a_bento" / "1"
    model.mkdir(parents=True)
    joblib.dump(LOGISTIC, model / "saved_model.pkl")
    text = "module: bentoml.sklearn\nsignatures: {predict: {batchable: true, batch_dim: [0, 0]}}\n"
    (model / "model.yaml").write_text(text)
    (directory / "bento.yaml").write_text("models:\n- tag: of_a_bento:1\n")


def boosted_trees() -> lightgbm.Booster:
    data = lightgbm.Dataset(np.repeat(ROWS, 50, axis=0), np.repeat([0, 1, 1, 0], 50))
    return lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, data, 3)


def iris(source: Path, name: str, model: Any, **more: Any) -> None:
    """Write a model of scikit-learn, as MLServer has it."""
    (source / name).mkdir()
    joblib.dump(model, source / name / "model.joblib")
    settings = {"name": name, "implementation": "mlserver_sklearn.SKLearnModel", **more}
    (source / name / "model-settings.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    source, repository = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("repository")
    archive(source / "doubler.mar")
    archive(
        source / "function.mar",
        {"functions.py": FUNCTION},
        modelName="function",
        handler="functions.py:entry",
    )
    pictures(source)
    iris(source, "iris", LOGISTIC)
    iris(source, "regressor", LINEAR)
    iris(source, "batches", LOGISTIC, max_batch_size=4, max_batch_time=0.01)
    iris(source, "predict_proba", LOGISTIC, parameters={"extra": {"predict_fn": "predict_proba"}})
    trees = source / "trees"
    trees.mkdir()
    boosted_trees().save_model(trees / "model.bst")
    settings = {"name": "trees", "implementation": "mlserver_lightgbm.LightGBMModel"}
    (trees / "model-settings.json").write_text(json.dumps(settings))
    bento(source / "bento")
    found = (torchserve.models(source), mlserver.models(source), bentoml.models(source / "bento", None))
    for model in migrated(chain(*found)):
        write(model, repository)
    with Engine.open(model_repository=[str(repository)]) as opened:
        yield opened


def ask(engine: Engine, model: str, name: str, kind: str, content: bytes) -> tuple[str, bytes]:
    columns = {"names": name.encode(), "content_types": kind.encode(), "parts": content}
    outputs = engine.infer(model, {key: np.array([[value]], object) for key, value in columns.items()})
    return outputs["content_type"][0, 0].decode(), outputs["answer"][0, 0]


def test_a_class_is_a_handler(engine: Engine) -> None:
    assert ask(engine, "doubler", "body", "application/json", b"[1, 2]") == (
        "application/json",
        b"[\n  2,\n  4\n]",
    )
    with_charset = ask(engine, "doubler", "body", "application/json; charset=utf-8", b"[1, 2]")[1]
    assert with_charset == b"[\n  2,\n  4\n]"
    assert ask(engine, "doubler", "data", "image/png", b"\xff")[1] == repr(bytearray(b"\xff")).encode()


def test_a_function_is_a_handler(engine: Engine) -> None:
    assert ask(engine, "function", "text", "text/plain", "é".encode()) == ("", "text/plain é".encode())


def test_a_picture_has_the_five_best_classes(engine: Engine) -> None:
    file = io.BytesIO()
    Image.new("RGB", (300, 400), COLOUR).save(file, "PNG")
    _, answer = ask(engine, "pictures", "data", "image/png", file.getvalue())
    colour = (torch.tensor(COLOUR) / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor(
        [0.229, 0.224, 0.225]
    )
    scores = torch.softmax(Means()(colour[None, :, None, None]), dim=1)[0]
    best = {f"class{index}": scores[index].item() for index in scores.topk(5).indices.tolist()}
    assert json.loads(answer) == pytest.approx(best, rel=1e-4)


def test_a_model_of_scikit_learn_predicts(engine: Engine) -> None:
    outputs = engine.infer("iris", {"predict": ROWS})
    assert outputs["predict"].tolist() == [[0], [1], [1], [0]]


@pytest.mark.parametrize(
    ("name", "datatype", "dims", "answer"),
    [
        ("regressor", mc.TYPE_FP32, [[-1, 2], [-1, 1]], LINEAR.predict(ROWS)[:, None]),
        ("batches", mc.TYPE_INT64, [[2], [1]], [[0], [1], [1], [0]]),
        ("predict_proba", mc.TYPE_FP32, [[-1, 2], [-1, 2]], LOGISTIC.predict_proba(ROWS)),
        ("of_a_bento", mc.TYPE_INT64, [[2], [1]], [[0], [1], [1], [0]]),
    ],
)
def test_what_settings_do_not_declare_the_model_knows(
    engine: Engine, name: str, datatype: int, dims: Any, answer: Any
) -> None:
    config = engine.config(name)
    assert config.output[0].data_type == datatype
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == dims
    (found,) = engine.infer(name, {"predict": ROWS}).values()
    np.testing.assert_array_equal(found, answer)


def test_a_model_of_lightgbm_predicts_as_precisely_as_mlserver(engine: Engine) -> None:
    answer = engine.infer("trees", {"predict": ROWS})["predict"]
    assert answer.dtype == np.float64
    np.testing.assert_array_equal(answer[:, 0], boosted_trees().predict(ROWS))
