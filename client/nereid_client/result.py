"""What a call returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nereid_client.datatypes import Array
from nereid_client.messages import Response


@dataclass(frozen=True)
class Class:
    """One of the best classes of a row; `label` is "" where the model has no labels."""

    score: float
    index: int
    label: str


class Result(Mapping[str, Array]):
    """The outputs of a call by name.

    Arrays of a call through a pool lie in shared memory: their slot is used again when the result is closed
    or collected, and no array of it is left. `copy` returns arrays that need no slot. Those of a pool
    on a GPU are tensors of PyTorch.

    Attributes:
        model, version: what answered.
        id: of the request.
        parameters: of the response.
    """

    def __init__(self, response: Response, arrays: Mapping[str, Array], one_row: bool) -> None:
        self.model, self.version, self.id = response.model, response.version, response.id
        self.parameters: Mapping[str, Any] = response.parameters
        self._arrays = {name: array[0] if one_row else array for name, array in arrays.items()}

    def __getitem__(self, name: str) -> Array:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"no output '{name}' in the answer, which has: {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in self.items())
        return f"<Result of {self.model} {self.version}: {outputs}>"

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the arrays."""
        self._arrays = {}

    def copy(self) -> dict[str, Array]:
        """Return the arrays, copied."""
        return {
            name: array.copy() if isinstance(array, np.ndarray) else array.clone()
            for name, array in self.items()
        }

    def top(self, output: str = "") -> Any:
        """Return the classes that `classes=` asked for: a list for a row, a list of them for a batch.

        Args:
            output: its name; not needed where there is one.
        """
        array = self[output] if output else next(iter(self.values()))
        if array.dtype != object:
            raise TypeError("call the model with options(classes=...) to have its best classes")
        return _classes(array)


def _classes(array: Array) -> Any:
    if array.ndim > 1:
        return [_classes(row) for row in array]
    return [_read_class(entry) for entry in array]


def _read_class(entry: bytes) -> Class:
    score, index, *label = entry.decode().split(":", 2)
    return Class(float(score), int(index), label[0] if label else "")
