"""Settings of the tensorrt backend that say how batches are executed, over the stand-ins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from app.core.errors import InferError
from backends.base import Instance
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.tensorrt import fake_tensorrt as trt
from tests.unit.backends.tensorrt.test_backend import X3, plan, rows

Serve = Callable[..., Served]


@pytest.fixture
def serve(backend: Any, tmp_path: Path) -> Serve:
    def load(settings: dict[str, str]) -> Served:
        plan(tmp_path, trt.add_one())
        return Served(backend.TensorRtBackend, config(X3), tmp_path, settings, kind="GPU")

    return load


def two_instances(served: Served) -> list[Instance]:
    other = Instance(served.model, "m_0_1", "GPU")
    served.backend.instance_initialize(other)
    return [served.instance, other]


def test_instances_launch_in_turn_if_they_are_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(settings={"execution-policy": "DEVICE_BLOCKING"})
    instances = two_instances(served)
    held: list[tuple[bool, bool]] = []
    launch = trt.IExecutionContext.execute_async_v3

    def launched(context: Any, stream: int) -> bool:
        held.append((instances[0].state.turn.locked(), instances[1].state.turn.locked()))
        return launch(context, stream)

    monkeypatch.setattr(trt.IExecutionContext, "execute_async_v3", launched)
    (call,) = served(infer({"X": rows(2)}))
    assert (call.arrays["Y"] == rows(2) + 1).all()
    assert held == [(True, True)]  # one lock, which the other instance would wait for
    assert not instances[0].state.turn.locked()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"execution-policy": "ASYNC"}, "execution-policy=ASYNC is neither BLOCKING nor DEVICE_BLOCKING"),
        ({"coalesce-request-input": "true"}, "coalesce-request-input=true changes nothing"),
    ],
)
def test_settings_without_effect_are_said(
    settings: dict[str, str], text: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serve(settings=settings)
    assert text in caplog.text


def test_coalescing_is_a_boolean(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    serve(settings={"coalesce-request-input": "false"})
    assert not caplog.text
    with pytest.raises(InferError, match="'coalesce-request-input': failed to convert 'much' to boolean"):
        serve(settings={"coalesce-request-input": "much"})
