"""Settings of the fronts for SageMaker and Vertex AI."""

from pathlib import Path
from typing import Any

import pytest

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")


def made(directory: Path, **args: Any) -> ServerSettings:
    return from_args({"model_repository": str(directory), **args})


def test_they_listen_nowhere_unless_asked(tmp_path: Path) -> None:
    settings = made(tmp_path)
    assert [front.enabled for front in settings.clouds.fronts(settings.http).values()] == [False, False]


def test_their_ports_differ_from_the_others(tmp_path: Path) -> None:
    text = "The server cannot listen to SageMaker requests and Vertex AI requests at the same address and"
    with pytest.raises(SettingsError, match=text):
        made(tmp_path, allow_sagemaker=True, allow_vertex_ai=True)


def test_other_ports_are_in_sagemakers_range(tmp_path: Path) -> None:
    given = {"allow_sagemaker": True, "sagemaker_safe_port_range": "8000-8001"}
    with pytest.raises(SettingsError) as refused:
        made(tmp_path, **given)
    text = "The server cannot listen to metrics requests at port 8002, allowed port range is [8000, 8001]"
    assert str(refused.value) == text
    assert made(tmp_path, **given, allow_metrics=False).clouds.safe_ports == (8000, 8001)
    made(tmp_path, sagemaker_safe_port_range="1-2")


def test_a_variable_of_sagemaker_has_one_of_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGEMAKER_TRITON_INFERENCE_TYPE", "x")
    with pytest.raises(SettingsError, match="Must be one of: infer, generate, generate_stream"):
        made(tmp_path, allow_sagemaker=True)
    assert made(tmp_path).clouds.sagemaker_type == "infer"


def test_vertex_ai_names_port_and_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MODE", "PREDICTION"), ("HTTP_PORT", "7080"), ("STORAGE_URI", str(tmp_path))):
        monkeypatch.setenv(f"AIP_{name}", value)
    settings = from_args({})
    assert settings.repository.paths == (str(tmp_path.resolve()),)
    assert (settings.http.enabled, settings.grpc.enabled, settings.clouds.vertex_ai_port) == (
        False,
        False,
        7080,
    )
    assert (settings.clouds.vertex_ai_predict, settings.clouds.vertex_ai_health) == ("/predict", "/health")
    assert from_args({"allow_http": True}).http.enabled, "what is given comes first"


def test_an_open_front_without_http_is_warned_of(tmp_path: Path) -> None:
    settings = made(tmp_path, allow_sagemaker=True, allow_http=False, http_address="0.0.0.0")
    assert ["--http-address=0.0.0.0" in warning for warning in settings.warnings] == [True]
    assert settings.audits
