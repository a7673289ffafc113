"""Warnings about outputs of a Python model that do not match its configuration.

Triton sends such outputs, or drops undeclared ones, without a word, and so do we; the log helps to find them.
"""

import json
import logging
from collections.abc import Iterable, Sequence

from app.core.datatypes import DATATYPES
from app.core.tensors import Tensor

logger = logging.getLogger(__name__)

_WIRE_NAMES = {datatype.config_name: name for name, datatype in DATATYPES.items()}


class OutputCheck:
    """Compares responses with a configuration; logs one warning per kind of difference.

    Attributes:
        fitting: data type and shape of each output that was right last, which mostly are the next one's.
    """

    def __init__(self, model_name: str, config: str) -> None:
        """Read the declared outputs from a configuration in JSON."""
        fields = json.loads(config)
        batch = [-1] if fields.get("max_batch_size") else []
        self._model_name = model_name
        self._declared = {output["name"]: _declaration(output, batch) for output in fields.get("output", ())}
        self._warned: set[str] = set()
        self.fitting: dict[str, tuple[str, tuple[int, ...]]] = {}

    def warn_of_undeclared(self, names: Iterable[str]) -> None:
        """Warn of outputs that the configuration lacks."""
        for name in names:
            self._warn(
                "undeclared", f"output '{name}', which its configuration does not declare; it is dropped"
            )

    def compare(self, output: Tensor) -> None:
        """Warn of an output of another data type or shape than declared."""
        declared = self._declared.get(output.name)
        if declared is None:  # a sequence's state
            return
        datatype, dims = declared
        if output.datatype != datatype:
            text = f"output '{output.name}' of data type {output.datatype}, declared {datatype}"
            self._warn("datatype", text)
        if not _matches(output.shape, dims):
            text = f"output '{output.name}' of shape {list(output.shape)}, declared {dims}"
            self._warn("shape", text)
        elif output.datatype == datatype:
            self.fitting[output.name] = output.datatype, output.shape

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("model '%s' returned %s; this is logged once", self._model_name, text)


def _declaration(output: dict[str, object], batch: list[int]) -> tuple[str, list[int]]:
    """Return the data type and the dimensions, batch dimension included, that a model must return."""
    shaped = output.get("reshape") or output
    assert isinstance(shaped, dict)
    dims = shaped.get("shape" if "reshape" in output else "dims", ())
    return _WIRE_NAMES.get(str(output["data_type"]), ""), [*batch, *map(int, dims)]


def _matches(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
