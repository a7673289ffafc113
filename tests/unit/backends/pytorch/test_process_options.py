"""Parameters that set an option of the whole process."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.unit.backends.pytorch.test_backend import Same, one, save, serve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(("value", "given"), [("3", [3]), ("0", []), ("-1", []), ("", [])])
def test_threads_between_operators(
    value: str, given: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which PyTorch takes once in a process, so the function is watched."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_interop_threads", asked.append)
    serve(one("TYPE_FP32", extra=parameter("INTER_OP_THREAD_COUNT", value)), save(Same(), tmp_path)).close()
    assert asked == given


def test_threads_between_operators_that_come_too_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = parameter("INTER_OP_THREAD_COUNT", "2")
    for _ in range(2):  # PyTorch refuses the second time at the latest
        serve(one("TYPE_FP32", extra=extra), save(Same(), tmp_path)).close()
    assert "INTER_OP_THREAD_COUNT of model 'x' is not set: " in caplog.text


@pytest.mark.parametrize(("value", "enabled"), [("true", False), ("false", True)])
def test_cudnn(
    value: str,
    enabled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.backends.cudnn, "enabled", True)
    serve(one("TYPE_FP32", extra=parameter("DISABLE_CUDNN", value)), save(Same(), tmp_path)).close()
    assert torch.backends.cudnn.enabled == enabled
    assert f"cuDNN is {'enabled' if enabled else 'disabled'} for model instance 'x'" in caplog.messages
