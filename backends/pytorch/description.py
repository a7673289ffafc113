"""What the server knows of the backend `pytorch`."""

from typing import Final

from backends.description import BackendDescription, ModelFormat

_NO_PACKAGE: Final = 'PyTorch inductor model file "{path}" is unreachable or inaccessible'

BACKENDS: Final = (
    BackendDescription(
        name="pytorch",
        backend="backend:TorchBackend",
        python_file="eager/model.py",
        hosted=True,
        formats=(
            ModelFormat("model.pt", "pytorch_libtorch", "libtorch", named_for_backend=True),
            ModelFormat("model.pt2", "torch_aoti", missing=_NO_PACKAGE),
        ),
        order=5,
        modules={"torch": "PyTorch"},
        extra="pytorch",
        aliases=("torch", "libtorch", "torchscript"),
        kinds=("aoti", "export", "torchscript", "pytorch"),
        thread_parameter="INTRA_OP_THREAD_COUNT",
    ),
)
