"""Everything here needs an NVIDIA GPU and the extra `gpu`: `make test-gpu`. Elsewhere it is skipped.

Engines and models are built by the tests, for the GPU that is there.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def has_gpu() -> bool:
    """Whether PyTorch can use a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it where there is no GPU."""
    mine = [item for item in items if HERE in item.path.parents]
    missing = None if not mine or has_gpu() else pytest.mark.skip(reason="needs a CUDA device")
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if missing is not None:
            item.add_marker(missing)
