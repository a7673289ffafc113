"""The weights of an eager model: a state_dict, of which nothing is executed.

An environment of a model's own needs torch, and none of our packages.
"""

import os
from typing import Any

import torch

from backends.pytorch.pickles import refused


def read_weights(path: str, device: Any) -> Any:
    """Read weights without executing what a pickle says.

    Raises:
        ValueError: the file has anything but weights.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        reason = refused(error) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"'{os.path.basename(path)}' beside model.py must be a state_dict of the module"
            f" (torch.save(model.state_dict(), 'model.pt')): {reason}"
        ) from error
