"""Finds values of inputs that a model should not have, and rejects, tags or logs their requests."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from app.core.config.model_config import dims_text
from app.core.drift.reference import VersionReference
from app.core.drift.spec import Action, InputRule, Number
from app.core.errors import InferError, invalid_arg
from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest, InferResponse, RegionSlice, Tensor
from app.transport.memory.client_regions import read_inputs

logger = logging.getLogger(__name__)

PARAMETER: Final = "nereid_data_quality"
"""The parameter of responses to tagged requests: what was found, as `x:nan,y:range`."""
_SHOWN: Final = 60


Admitted = tuple[str, str, str, str]
"""A model, its input, what was found there, and what was done."""


class Found(NamedTuple):
    """A value that an input should not have."""

    tensor: str
    kind: str
    action: Action
    text: str


class AdmissionTally:
    """Counts the requests that rules have found, by model, tensor, kind and action."""

    def __init__(self) -> None:
        self.counts: Counter[Admitted] = Counter()
        self._told: Counter[Admitted] = Counter()

    def add(self, model: str, found: Found) -> None:
        """Count a request."""
        self.counts[model, found.tensor, found.kind, found.action] += 1

    def tell(self) -> None:
        """Log what was found since the last time: a line for each rule, however many requests there were."""
        for (model, tensor, kind, action), number in (self.counts - self._told).items():
            text = "model '%s': input '%s' of %d requests: %s (%s)"
            logger.warning(text, model, tensor, number, kind, action)
        self._told = self.counts.copy()


class Rules:
    """The rules of a model's inputs."""

    def __init__(
        self, model: str, rules: Mapping[str, InputRule], reference: VersionReference | None
    ) -> None:
        self.model = model
        tensors = reference.inputs.tensors if reference is not None else ()
        known = {tensor.name: _categories(tensor.features) for tensor in tensors}
        self._rules = {name: _Rule(rule, known.get(name)) for name, rule in rules.items()}

    def found(self, request: InferRequest) -> list[Found]:
        """Return what the inputs of a request have that they should not."""
        found = list[Found]()
        for tensor in request.inputs:
            rule = self._rules.get(tensor.name)
            if rule is None or type(tensor.data) is RegionSlice:
                continue
            try:
                values = tensor.array()
            except (InferError, ValueError):
                continue  # which the model's replica refuses, with its own text
            found += rule.found(tensor, values)
        return found

    def refusal(self, request: InferRequest, found: Found) -> InferError:
        """Return the error of a request that is rejected."""
        where = f"[request id: {request.id or '<id_unknown>'}] "
        return invalid_arg(f"{where}input '{found.tensor}' for model '{self.model}' {found.text}")


def _categories(features: Any) -> frozenset[str] | None:
    """Return the categories that a reference knows of a tensor with one feature."""
    if len(features) != 1 or not features[0].is_category:
        return None
    return frozenset((*features[0].values, *features[0].known))


class _Rule:
    """The rule of one input."""

    def __init__(self, rule: InputRule, known: frozenset[str] | None) -> None:
        self._rule = rule
        self._known = frozenset(map(_text, rule.values)) if rule.values else known

    def found(self, tensor: Tensor, values: Any) -> Iterator[Found]:
        rule = self._rule
        if tensor.datatype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        is_float = values.dtype.kind == "f"
        if rule.nan is not None and is_float and (bad := np.isnan(values)).any():
            yield Found(tensor.name, "nan", rule.nan, f"has NaN at {_place(bad)}")
        if rule.range is not None and values.dtype.kind in "fiu":
            low, high = rule.range
            bad = (values < low) | (values > high)
            if bad.any():
                text = f"has {values[bad][0]:.6g} at {_place(bad)}, outside of {low:g} to {high:g}"
                yield Found(tensor.name, "range", rule.outside, text)
        if rule.new is not None and self._known is not None:
            texts = [_text(value) for value in values.reshape(-1).tolist()]
            new = next((each for each in texts if each not in self._known), None)
            if new is not None:
                at = np.zeros(values.size, bool)
                at[texts.index(new)] = True
                text = f"has {_shown(new)} at {_place(at.reshape(values.shape))}, which is not a known value"
                yield Found(tensor.name, "new", rule.new, text)


def _text(value: Number | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else f"{value:.17g}"


def _shown(text: str) -> str:
    return f"'{text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}'"


def _place(bad: Any) -> str:
    return dims_text([int(index) for index in np.argwhere(bad)[0]]) if bad.ndim else "[]"


@dataclass(slots=True, eq=False)
class AdmittedTarget:
    """A version the inputs of whose requests are checked, all of them."""

    route: Target
    rules: Rules
    tally: AdmissionTally

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self.route.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`.

        Raises:
            InferError: also INVALID_ARG for a value that is rejected.
        """
        # What is in memory of a client may still change: the model gets what was checked.
        checked = with_read_inputs(request)
        found = self.rules.found(checked)
        if not found:
            return self.route.submit(checked, sink)
        for each in found:
            self.tally.add(self.rules.model, each)
        refused = next((each for each in found if each.action == "reject"), None)
        if refused is not None:
            raise self.rules.refusal(request, refused)
        tags = ",".join(f"{each.tensor}:{each.kind}" for each in found if each.action == "tag")
        return self.route.submit(checked, partial(_deliver_tagged, tags, sink) if tags else sink)


def with_read_inputs(request: InferRequest) -> InferRequest:
    """Return the request with the inputs that are in shared memory of a client, but for that of a GPU.

    Raises:
        InferError: as `read_inputs`.
    """
    places = [tensor.data for tensor in request.inputs if type(tensor.data) is RegionSlice]
    if not places or any(place.handle for place in places):
        return request
    return read_inputs(request)


def _deliver_tagged(tags: str, sink: Sink, response: InferResponse) -> None:
    if response.failure is None and not response.is_end_of_stream:
        response = msgspec.structs.replace(response, parameters={**response.parameters, PARAMETER: tags})
    sink(response)
