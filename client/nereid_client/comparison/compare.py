"""Compares the outputs of two answers to one request by rules. Pure.

A comparison blocks for as long as the tensors are large.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nereid_client.comparison.rules import ATOL, COSINE, FLOATS, OF_LARGEST, RTOL, ComparisonRules, OutputRule
from nereid_client.datatypes import decode

Array = npt.NDArray[Any]
Fault = Literal["", "missing", "unexpected", "datatype", "shape", "unreadable", "values", "cosine", "argmax"]
MOST: Final = 1e30
"""Stands for what has no number: another shape, a number beside none. (JSON has no infinity.)"""
_INTEGERS: Final = ("INT", "UINT")
_SUM_TOLERANCE: Final = 0.01
_NOISE: Final = 1e-3
"""Vectors shorter than this part of the longest one have no direction that means anything."""


class TensorLike(Protocol):
    """A named tensor by its wire bytes, as requests and tapes have it."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> Any: ...


class OutputDifference(NamedTuple):
    """What one output shows.

    Attributes:
        output: its name.
        fault: why it is not within its rule; "" if it is.
        severity: how far it is from its rule, which it keeps up to 1; up to `MOST`.
        absolute: the largest difference of two elements; 0 of what are no numbers.
        cosine: the lowest one; 1 of what are no vectors.
        within: the share of the elements that keep to the rule.
        near_tie: of an output whose largest elements are compared: whether all vectors are near ties; True of
            one that has nothing which its rule compares, see `nothing_compared`.
    """

    output: str
    fault: Fault = ""
    severity: float = 0.0
    absolute: float = 0.0
    cosine: float = 1.0
    within: float = 1.0
    near_tie: bool | None = None

    def __str__(self) -> str:
        if not self.fault:
            return f"{self.output}: as expected"
        figures = []
        if self.fault in ("values", "cosine", "argmax") and 0 < self.absolute < MOST:
            figures.append(f"by up to {self.absolute:.3g}")
        if self.within < 1 and self.fault == "values":
            figures.append(f"{1 - self.within:.2%} of the elements")
        if self.cosine < 1:
            figures.append(f"cosine {self.cosine:.3g}")
        return f"{self.output}: {', '.join([self.fault, *figures])}"


class Compared(NamedTuple):
    """What the outputs of two answers show; those that are to be ignored are left out.

    Attributes:
        outputs: those that were compared.
        ignored: there were others.
    """

    outputs: tuple[OutputDifference, ...]
    ignored: bool = False

    @property
    def differs(self) -> bool:
        """Whether an output is missing, of another kind, or outside its tolerances."""
        return any(each.fault not in ("", "argmax") for each in self.outputs)

    @property
    def disagrees(self) -> bool:
        """Whether all keep to their tolerances, but the largest element is another, clear of the margin."""
        return self.bad and not self.differs

    @property
    def near_tie(self) -> bool:
        """Whether nothing is wrong, and no largest element that was compared is clear of the margin.

        Such an answer speaks neither for nor against whoever gave it, nor does one of ignored outputs.
        """
        ties = [each.near_tie for each in self.outputs if each.near_tie is not None]
        return not self.bad and all(ties) and bool(ties or (self.ignored and not self.outputs))

    @property
    def bad(self) -> bool:
        """Whether an output is outside its rule."""
        return any(each.fault for each in self.outputs)

    @property
    def severity(self) -> float:
        """How far the worst output is from its rule."""
        return max((each.severity for each in self.outputs), default=0.0)

    @property
    def absolute(self) -> float:
        """The largest difference of two elements."""
        return max((each.absolute for each in self.outputs), default=0.0)

    def __str__(self) -> str:
        return "; ".join(str(each) for each in self.outputs if each.fault) or "as expected"


def compare(
    rules: ComparisonRules, expected: Iterable[TensorLike], answered: Iterable[TensorLike]
) -> Compared:
    """Compare the outputs of two answers, in whatever order; nothing is raised for tensors that are wrong."""
    ours = {tensor.name: tensor for tensor in answered}
    theirs = {tensor.name: tensor for tensor in expected}
    found = [_output(rules, name, theirs.get(name), ours.get(name)) for name in {**theirs, **ours}]
    outputs = tuple(each for each in found if each is not None)
    return Compared(outputs, len(outputs) < len(found))


def _output(
    rules: ComparisonRules, name: str, a: TensorLike | None, b: TensorLike | None
) -> OutputDifference | None:
    rule = rules.rule(name)
    if rule == "ignore":
        return None
    if a is None or b is None:
        return OutputDifference(name, "missing" if b is None else "unexpected", MOST, within=0.0)
    if a.datatype != b.datatype or tuple(a.shape) != tuple(b.shape):
        fault: Fault = "datatype" if a.datatype != b.datatype else "shape"
        return OutputDifference(name, fault, MOST, within=0.0)
    try:
        return _tensors(rules.margin, rule, a, b)
    except (ValueError, KeyError, TypeError, IndexError):  # bytes that are not those of such a tensor
        same = bytes(a.data) == bytes(b.data)
        return OutputDifference(name) if same else OutputDifference(name, "unreadable", MOST, within=0.0)


def _tensors(margin: float, rule: OutputRule | str, a: TensorLike, b: TensorLike) -> OutputDifference:
    limits = rule if isinstance(rule, OutputRule) else OutputRule()
    equal = _words(a.data) == _words(b.data)
    floats = a.datatype in FLOATS
    only_largest = rule in ("argmax", "ctc")
    if equal and not floats and not only_largest:
        return OutputDifference(a.name)
    x, y = (_numbers(tensor) for tensor in (a, b))
    found = OutputDifference(a.name)
    if only_largest and (x.shape[-1] < 2 or x.dtype == object):
        return found._replace(near_tie=True)
    if not equal and not only_largest:
        if floats:
            found = _floats(a.name, x, y, OutputRule(atol=0.0, rtol=0.0) if rule == "exact" else limits)
        else:
            found = _others(a.name, a.datatype, x, y, limits)
    if rule == "ctc" and x.ndim > 1 and x.size:
        return _with_text(found, x, y, margin)
    wanted = only_largest or limits.argmax
    if wanted is None and rule != "exact":
        wanted = floats and _are_probabilities(x)
    return _with_argmax(found, x, y, margin, limits.share) if wanted and x.size else found


def _words(data: Any) -> memoryview:
    return memoryview(data).cast("B")


def _numbers(tensor: TensorLike) -> Array:
    array = np.atleast_1d(decode(tensor.data, tensor.datatype, tuple(tensor.shape)))
    return array.astype(np.float32) if tensor.datatype == "FP16" else array


def _floats(name: str, a: Array, b: Array, rule: OutputRule) -> OutputDifference:
    vectors, only_cosine = a.shape[-1] > 1, rule.atol is None and rule.rtol is None and not rule.is_default
    with np.errstate(all="ignore"):
        distance = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))  # infinities too
        distance[same] = 0.0
        unlike = ~np.isfinite(distance)
        distance[unlike] = MOST
        cosines = _cosines(a, b, same) if vectors else np.ones(1)
        ratio = distance / (RTOL * np.abs(a) if only_cosine else _allowed(a, rule))
    # Where only directions count, that is of what has none for its size.
    ratio[(distance == 0) | (only_cosine & (np.maximum(np.abs(a), np.abs(b)) < MOST))] = 0.0
    ratio[unlike] = MOST
    found = _judged(name, distance, ratio, cosines, rule)
    return found._replace(near_tie=True) if only_cosine and not vectors and not found.fault else found


def _allowed(a: Array, rule: OutputRule) -> Array:
    """Return what each element may differ by."""
    size: Array = np.abs(a)
    size[~np.isfinite(size)] = 0.0
    if not rule.is_default:
        return np.asarray((rule.atol or 0.0) + (rule.rtol or 0.0) * size)
    if a.shape[-1] < 2:
        return np.asarray(ATOL + RTOL * size)
    # What stands for minus infinity, as masks do, makes no other element of its vector right.
    largest = np.where(size < MOST, size, 0.0).max(-1, keepdims=True, initial=0.0)
    return np.asarray(RTOL * size + OF_LARGEST * np.maximum(largest, _NOISE * largest.max(initial=0.0)))


def _cosines(a: Array, b: Array, same: Array) -> Array:
    x, y = (np.where(np.abs(each) < MOST, each, 0.0).astype(np.float64) for each in (a, b))
    lengths = np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)
    least = _NOISE * max((each.max(initial=0.0) for each in lengths), default=0.0)
    product = lengths[0] * lengths[1]
    cosines = np.where(product > 0, (x * y).sum(-1) / np.where(product > 0, product, 1.0), 0.0)
    meaningless = same.all(-1) | ((lengths[0] <= least) & (lengths[1] <= least))
    return np.where(meaningless, 1.0, np.minimum(cosines, 1.0))


def _judged(name: str, distance: Array, ratio: Array, cosines: Array, rule: OutputRule) -> OutputDifference:
    lowest = COSINE if rule.is_default else rule.cosine
    cosine = float(cosines.min(initial=1.0))
    within = float((ratio <= 1).mean()) if ratio.size else 1.0
    severity = float(np.quantile(ratio, rule.share, method="inverted_cdf")) if ratio.size else 0.0
    fault: Fault = "values" if within < rule.share else ""
    if lowest is not None:
        severity = max(severity, (1 - cosine) / max(1 - lowest, 1e-9))
        fault = fault or ("cosine" if cosine < lowest else "")
    largest = float(distance.max(initial=0.0))
    return OutputDifference(
        name, fault, min(severity, MOST), min(largest, MOST), cosine, within if fault else 1.0
    )


def _others(name: str, datatype: str, a: Array, b: Array, rule: OutputRule) -> OutputDifference:
    """Compare integers, BOOL and BYTES: by equality, or tolerances of integers."""
    keeps, largest = a == b, 0.0
    if datatype.startswith(_INTEGERS):
        # Exact modulo 2 ** 64, in which the difference of any two is: floats have 53 bits.
        distance = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)
        largest = float(distance.max(initial=0))
        if rule.atol is not None or rule.rtol is not None:
            keeps |= distance <= (rule.atol or 0.0) + (rule.rtol or 0.0) * np.abs(a.astype(np.float64))
    within = float(np.mean(keeps)) if keeps.size else 1.0
    fault: Fault = "values" if within < rule.share else ""
    severity = (1 - within) / max(1 - rule.share, 0.5 / max(keeps.size, 1))
    return OutputDifference(name, fault, min(severity, MOST), largest, within=within)


def _are_probabilities(a: Array) -> bool:
    """Return whether all vectors are probabilities of at least two classes."""
    if a.shape[-1] < 2 or not a.size:
        return False
    sums = a.sum(-1, dtype=np.float64)
    return bool(a.min() >= 0 and np.abs(sums - 1).max() <= _SUM_TOLERANCE)


def _with_argmax(
    found: OutputDifference, a: Array, b: Array, margin: float, share: float
) -> OutputDifference:
    if a.shape[-1] < 2 or a.dtype == object:
        return found
    best = np.argmax(a, -1)
    second, first = np.moveaxis(np.partition(a.astype(np.float64), -2, -1)[..., -2:], -1, 0)
    clear = first - second > margin  # not where one is not a number
    wrong = clear & (best != _largest(b))
    agreeing = 1 - wrong.sum() / max(clear.sum(), 1)
    found = found._replace(near_tie=not clear.any())
    if agreeing >= share or found.fault:
        return found
    lead = float((first - second)[wrong].max())
    return found._replace(fault="argmax", severity=max(found.severity, 1 + min(lead, MOST)))


def _with_text(found: OutputDifference, a: Array, b: Array, margin: float) -> OutputDifference:
    """Compare the texts of steps by CTC, [..., steps, classes]; a near tie is one that may be the other."""
    if all(map(_same_text, _steps(a), _steps(b))):
        return found._replace(near_tie=False)
    judged = _with_argmax(found, a, b, margin, 1.0)
    return judged if judged.fault else judged._replace(near_tie=True)


def _steps(a: Array) -> Array:
    """Return the classes of the steps of each text."""
    return _largest(a).reshape(-1, a.shape[-2])


def _largest(a: Array) -> Array:
    """Return the place of the largest element of each vector; -1 for one with what is not a number."""
    return np.where(np.isnan(a).any(-1), -1, np.argmax(a, -1))


def _same_text(a: Array, b: Array) -> bool:
    return np.array_equal(_text(a), _text(b))


def _text(classes: Array) -> Array:
    begins = np.diff(classes, prepend=-2) != 0
    return np.asarray(classes[begins & (classes != 0)])
