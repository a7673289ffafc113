"""What a model's inputs and outputs looked like once: the contents of `drift.json` in its directory.

tritonserver ignores the file. Bins are fixed by it, so that counts of requests add exactly, whoever counts.
"""

from typing import Final, Literal

import msgspec

from app.core.encoding import to_json
from app.core.errors import invalid_arg

REFERENCE_FILE: Final = "drift.json"
MOST_BYTES: Final = 4 << 20
MOST_FEATURES: Final = 256
"""Features of inputs, and of outputs, that are counted; tensors behind them are left out."""
FEWEST_ROWS: Final = 1000
"""Rows of a reference: with fewer the reference itself is too uncertain."""

Kind = Literal["numbers", "summary", "picture", "vector", "classes", "text", "labels"]
"""How features are made of a tensor, see `extraction.py`."""


class Feature(msgspec.Struct, frozen=True, omit_defaults=True):
    """One number or category of each row, and how often the reference had it in each cell.

    Attributes:
        name: of the tensor, and of what it is of it: `x[3]`, `image.mean`.
        counts: rows of the reference by cell. Numbers have the cells NaN, far below, below, each bin, above,
            far above; categories one for each of `values`, then other known ones, then new ones.
        edges: of the bins of numbers, rising: one more than there are bins, the last one exclusive.
        values: the most frequent categories, as text.
        known: further categories of the reference.
        mean, deviation: of the numbers of the reference.
    """

    name: str
    counts: tuple[int, ...]
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 0.0

    @property
    def is_category(self) -> bool:
        """Whether it has categories instead of numbers."""
        return not self.edges


class WatchedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output, and its features.

    Attributes:
        width: elements of a row, where that is always the same; 0 where it varies.
        channels: the axis of a picture's row that has its channels, and how many there are.
        softmax: whether the values of `classes` are no probabilities yet.
    """

    name: str
    kind: Kind
    features: tuple[Feature, ...]
    width: int = 0
    channels: tuple[int, int] = (0, 0)
    softmax: bool = False


class Side(msgspec.Struct, frozen=True):
    """The inputs, or the outputs of one version.

    Attributes:
        rows: so many were counted.
        made: when, in Unix seconds.
        source: what of, in words.
        content: digest of the files of the version that made the outputs; "" if it is not known.
    """

    rows: int
    made: float
    source: str
    tensors: tuple[WatchedTensor, ...]
    content: str = ""


class Reference(msgspec.Struct, frozen=True):
    """The reference of a model: a new version keeps that of its inputs, and gets its own for outputs."""

    inputs: Side
    outputs: dict[str, Side] = {}
    format: Literal[1] = 1

    def of(self, version: int) -> "VersionReference":
        """Return that of one version."""
        return VersionReference(self.inputs, self.outputs.get(str(version)))


class VersionReference(msgspec.Struct, frozen=True):
    """The reference of one version of a model; without one for outputs only its inputs are counted."""

    inputs: Side
    outputs: Side | None = None

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features, in the order of their counts: first those of inputs."""
        return tuple(feature for tensor in self.tensors for feature in tensor.features)

    @property
    def tensors(self) -> tuple[WatchedTensor, ...]:
        """All tensors: first inputs."""
        return (*self.inputs.tensors, *(self.outputs.tensors if self.outputs else ()))

    @property
    def made(self) -> float:
        """When the older of the two was made."""
        return min(self.inputs.made, self.outputs.made) if self.outputs else self.inputs.made


def decode_reference(text: bytes, source: str = REFERENCE_FILE) -> Reference:
    """Read the text of a `drift.json`.

    Raises:
        InferError: INVALID_ARG with source, field and reason.
    """
    try:
        found = msgspec.json.decode(text, type=Reference)
    except msgspec.MsgspecError as error:
        raise invalid_arg(f"{source}: {error}") from None
    for side in (found.inputs, *found.outputs.values()):
        for feature in (each for tensor in side.tensors for each in tensor.features):
            _check(feature, source)
        if side.rows < FEWEST_ROWS:
            raise invalid_arg(f"{source}: {side.rows} rows, but a reference needs {FEWEST_ROWS}")
    for version in ("0", *found.outputs):
        if not version.isdecimal():
            raise invalid_arg(f"{source}: outputs: '{version}' is no version")
        if len(found.of(int(version)).features) > 2 * MOST_FEATURES:
            raise invalid_arg(f"{source}: more than {2 * MOST_FEATURES} features")
    return found


def _check(feature: Feature, source: str) -> None:
    rises = all(low < high for low, high in zip(feature.edges, feature.edges[1:], strict=False))
    cells = len(feature.edges) + 4 if feature.edges else len(feature.values) + 2
    if not rises or len(feature.edges) == 1 or len(feature.counts) != cells or sum(feature.counts) <= 0:
        raise invalid_arg(
            f"{source}: feature '{feature.name}' has edges and counts that do not belong together"
        )
    if min(feature.counts) < 0:
        raise invalid_arg(f"{source}: feature '{feature.name}' has a negative count")


def encode_reference(reference: Reference) -> bytes:
    """Return the text of a `drift.json`."""
    return msgspec.json.format(to_json(reference), indent=1) + b"\n"
