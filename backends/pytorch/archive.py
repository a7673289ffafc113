"""Finds the file of a PyTorch model, and what it holds."""

from pathlib import Path
from typing import Literal

from app.core.errors import invalid_arg, unavailable
from backends.base import Model
from backends.model_files import read_file
from backends.registry.file_kinds import foreign, holds_aoti, holds_export

Content = Literal["torchscript", "aoti", "exported"]
AOTI: Content = "aoti"


def model_file(model: Model) -> Path:
    """Return the file of a model: the one that the configuration names, else `model.pt` or `model.pt2`.

    Raises:
        InferError: UNAVAILABLE where it is missing.
    """
    is_package = model.config.platform == "torch_aoti"
    names = ("model.pt2", "model.pt") if is_package else ("model.pt", "model.pt2")
    paths = [model.artifact(name) for name in names]
    for path in paths:
        if path.is_file():
            return path
    if is_package:
        raise unavailable(f'PyTorch inductor model file "{paths[0]}" is unreachable or inaccessible.')
    raise unavailable(f"unable to find '{paths[0]}' for model instance '{model.name}'")


def content_of(path: Path, model: Model) -> Content:
    """Return what a file holds. An archive of both kinds of program is a package for `torch_aoti` alone.

    Raises:
        InferError: INVALID_ARG for weights without a program, pickles and files of other frameworks.
    """
    file = read_file(path)
    if fault := foreign(file, "pytorch"):
        raise invalid_arg(f"backend 'pytorch' cannot load '{path}'. {fault}")
    if file.begins(b"PK") and not file.members:
        raise invalid_arg(f"backend 'pytorch' cannot load '{path}': it is damaged or truncated")
    if holds_aoti(file) and not (holds_export(file) and model.config.platform != "torch_aoti"):
        return AOTI
    return "exported" if holds_export(file) else "torchscript"
