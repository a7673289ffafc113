"""Tensors of a model's configuration, for the request path and the manager.

The configuration itself is the protobuf message `ModelConfig` everywhere; there is no second class for it.
Beside this module: `text` (text to message), `normalise` (defaults), `validation`, `schedulers` and
`ensemble` (checks), `json` (message to JSON).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import BY_CONFIG_NAME

WILDCARD = -1


class TensorSpec(NamedTuple):
    """One input or output of a model, read from its configuration once.

    Attributes:
        name: tensor name.
        datatype: v2 name ("FP32", "BYTES"); "" when the configuration names no valid type.
        itemsize: bytes of an element, 0 for BYTES.
        dims: the configuration's `dims`, batch dimension excluded, -1 for a variable size.
        shape: `dims` behind the batch dimension (-1) when the model batches, as in its metadata.
        reshape: `reshape.shape`, batch dimension excluded; None when the tensor is not reshaped.
        optional: the client may leave the input out.
        label_filename: labels of an output, relative to the model's directory; "" for none.
    """

    name: str
    datatype: str
    itemsize: int
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    label_filename: str = ""

    @property
    def reshaped(self) -> "TensorSpec":
        """The tensor as the backend sees it, with `reshape` as its dims."""
        if self.reshape is None:
            return self
        batch = self.shape[: len(self.shape) - len(self.dims)]
        return self._replace(dims=self.reshape, shape=(*batch, *self.reshape), reshape=None)

    def backend_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Convert a client's shape into the backend's: `reshape` in place of `dims`, the batch size kept."""
        return tuple(shape) if self.reshape is None else self._swap(shape, self.dims, self.reshape)

    def client_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Convert a backend's shape into the client's: the reverse of `backend_shape`, for outputs."""
        return tuple(shape) if self.reshape is None else self._swap(shape, self.reshape, self.dims)

    def _swap(
        self, shape: Sequence[int], source: tuple[int, ...], target: tuple[int, ...]
    ) -> tuple[int, ...]:
        return _swapped(tuple(shape), len(self.shape) - len(self.dims), source, target)


@lru_cache(1024)
def _swapped(
    shape: tuple[int, ...], batch: int, source: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...]:
    # Validation checks that both sides have as many variable sizes, in the same order.
    variable = iter([size for size, dim in zip(shape[batch:], source, strict=True) if dim == WILDCARD])
    return (*shape[:batch], *_fill(target, variable))


def _fill(dims: Sequence[int], sizes: Iterator[int]) -> list[int]:
    return [next(sizes) if dim == WILDCARD else dim for dim in dims]


def input_specs(config: mc.ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the inputs a client sends, in the order of the configuration."""
    return tuple(_spec(io, config.max_batch_size)._replace(optional=io.optional) for io in config.input)


def output_specs(config: mc.ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the outputs a client may ask for, in the order of the configuration."""
    return tuple(
        _spec(io, config.max_batch_size)._replace(label_filename=io.label_filename) for io in config.output
    )


def _spec(io: Any, max_batch_size: int) -> TensorSpec:
    row = BY_CONFIG_NAME.get(datatype_name(io.data_type))
    dims = tuple(io.dims)
    return TensorSpec(
        name=io.name,
        datatype=row.name if row else "",
        itemsize=row.itemsize if row else 0,
        dims=dims,
        shape=(WILDCARD, *dims) if max_batch_size > 0 else dims,
        reshape=tuple(io.reshape.shape) if io.HasField("reshape") else None,
    )


def datatype_name(value: int) -> str:
    """Return a `DataType` value's name ("TYPE_FP32"); an unknown number as its digits."""
    found = mc.DataType.DESCRIPTOR.values_by_number.get(value)
    return found.name if found else str(value)


def dims_text(dims: Sequence[int]) -> str:
    """Format dims as Triton does, `[-1,16]`.

    Numbers beyond 64 bits are replaced by a word: a client chooses their length, and Python refuses to format
    more than 4300 digits.
    """
    return "[" + ",".join(str(d) if -(1 << 64) < d < 1 << 64 else "<out of range>" for d in dims) + "]"


def copied(config: mc.ModelConfig) -> mc.ModelConfig:
    """Return a copy of a configuration, which may be changed."""
    copy = mc.ModelConfig()
    copy.CopyFrom(config)
    return copy


def change_requires_reload(old: mc.ModelConfig, new: mc.ModelConfig) -> bool:
    """Return whether a changed configuration requires a reload.

    Only `instance_group` and `version_policy` may change in place (Triton's `ConfigChangeRequiresReload`).
    """
    return bool(_without_in_place_fields(old) != _without_in_place_fields(new))


def _without_in_place_fields(config: mc.ModelConfig) -> mc.ModelConfig:
    copy = copied(config)
    copy.ClearField("instance_group")
    copy.ClearField("version_policy")
    return copy
