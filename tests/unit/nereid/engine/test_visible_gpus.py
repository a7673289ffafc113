"""Which GPUs a process without Ray takes itself to have."""

from pathlib import Path

import pytest

from nereid.engine.repository import visible_gpus


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        ((), None, ()),
        ((), "0", ()),
        (("nvidia0", "nvidia1", "nvidiactl"), None, (0, 1)),
        (("nvidia0", "nvidia1"), "1", (0,)),
        (("nvidia0", "nvidia1"), "", ()),
        (("nvidia0",), "-1", ()),
        (("nvidia0",), "MIG-a,MIG-b", (0, 1)),
        (("dxg",), "0", (0,)),
        (("dxg",), None, ()),
    ],
)
def test_gpus_are_those_named_where_a_device_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[str, ...],
    visible: str | None,
    expected: tuple[int, ...],
) -> None:
    for device in devices:
        (tmp_path / device).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(tmp_path) == expected
