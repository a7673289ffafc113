"""Texts that a model continues together: each step reads the next tokens of several, side by side."""

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache

from backends.packaged.llm.engine.rows import Row, attend

logger = logging.getLogger(__name__)

Tensor = torch.Tensor
Work = Sequence[tuple[Any, Sequence[int]]]

_ATTENTION: Final = "rows"
_PROBES: Final = ([1, 2, 3, 4, 5, 6, 7], [3, 2, 1])
_TOLERANCES: Final = {torch.float32: 1e-4}
"""Of the spread of the logits: rounding differs by less, another mask or other positions by more."""
_TOLERANCE: Final = 0.05
"""That of shorter floats."""
_HARMLESS: Final = frozenset({"position_ids", "cache_position", "position_embeddings"})


class Batch:
    """Rows of tokens laid one behind the other, as one sequence; only attention sees which are whose.

    Attributes:
        joins: whether several texts are read in a step.
    """

    joins = True

    def __init__(self, model: Any) -> None:
        """Use a model of transformers.

        Raises:
            Unfit: it cannot be used so.
        """
        self._model = model
        self.device: torch.device = model.device
        config = model.config.get_text_config()
        self._layers: int = config.num_hidden_layers
        model.base_model.register_forward_hook(_remember)
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        before: str = model.config._attn_implementation
        _check_kind(model, config)
        expected = [_alone(model, prompt) for prompt in _PROBES]
        AttentionInterface.register(_ATTENTION, _attend_rows)
        model.set_attn_implementation(_ATTENTION)
        try:
            if model.config._attn_implementation != _ATTENTION:
                raise Unfit("it computes attention in a way of its own")
            self._probe(expected)
        except Exception as error:
            model.set_attn_implementation(before)
            raise error if isinstance(error, Unfit) else Unfit(str(error)) from error

    def row(self, adapter: str = "") -> Row:
        """Begin a text."""
        return Row(self._layers, adapter)

    def free(self, row: Row) -> None:
        """End a text, whose keys and values go with it."""

    @torch.inference_mode()
    def forward(self, work: Work) -> Tensor:
        """Read tokens of rows, at least one each; return the logits of what follows, [rows, vocabulary].

        A row is as before when this raises.
        """
        step = _Step(work)
        tokens = torch.tensor([[token for _, tokens in work for token in tokens]], device=self.device)
        positions = torch.cat([torch.arange(row.length, row.length + len(read)) for row, read in work])
        last = torch.tensor(step.ends, device=self.device) - 1
        options = {"logits_to_keep": last} if self._keeps else {}
        with step.current():
            found = self._model(
                input_ids=tokens,
                position_ids=positions[None].to(self.device),
                past_key_values=step,
                use_cache=True,
                **options,
            )
        logits: Tensor = found.logits[0] if self._keeps else found.logits[0, last]
        for index, (row, read) in enumerate(work):
            row.length += len(read)
            row.hidden = None if step.hidden is None else step.hidden[0, last[index]]
        return logits

    def _probe(self, expected: Sequence[Tensor]) -> None:
        """Compare what two texts get beside each other, one in two steps, with what each gets alone."""
        (long, short), rows = _PROBES, [self.row(), self.row()]
        tolerance = _TOLERANCES.get(self._model.dtype, _TOLERANCE)
        self.forward([(rows[0], long[:4])])
        found = self.forward([(rows[1], short), (rows[0], long[4:])])
        for logits, wanted in zip(found.flip(0), expected, strict=True):
            spread = float(wanted.max() - wanted.min())
            if not float((logits - wanted).abs().max()) <= tolerance * spread:
                raise Unfit("its texts differ where others are read beside them")


class Alone:
    """The same for a model that reads one text at a time, each by a cache of its own kind."""

    joins = False

    def __init__(self, model: Any) -> None:
        """Use a model of transformers; it is run once, because a first run takes longer."""
        self._model = model
        self.device: torch.device = model.device
        _alone(model, _PROBES[1])

    def row(self, adapter: str = "") -> Any:
        """Begin a text."""
        return DynamicCache(config=self._model.config)

    def free(self, row: Any) -> None:
        """End a text, whose keys and values go with it."""

    @torch.inference_mode()
    def forward(self, work: Work) -> Tensor:
        """Read tokens of the only row; return the logits of what follows, [1, vocabulary]."""
        ((row, tokens),) = work
        ids = torch.tensor([[*tokens]], device=self.device)
        logits: Tensor = self._model(input_ids=ids, past_key_values=row, use_cache=True).logits[:, -1]
        return logits


def adapters_of(count: int) -> list[str]:
    """Return the adapters of tokens that a layer computes in this thread: of all, or of each row's last."""
    step = _Step.of_this_thread()
    if step is None:
        return [""] * count
    if count == len(step.rows):
        return [row.adapter for row in step.rows]
    return [row.adapter for row, part in step.parts() for _ in range(part.start, part.stop)]


def make_batch(model: Any, warn: Callable[[str], object] = logger.warning) -> Batch | Alone:
    """Return what continues the texts of a model: several at a time, unless `warn` is told why not."""
    try:
        return Batch(model)
    except Unfit as unfit:
        warn(f"{type(model).__name__} continues one text at a time: {unfit}")
        return Alone(model)


class Unfit(Exception):
    """A model cannot read several texts in a step."""


class _Step(Cache):  # type: ignore[misc]  # transformers is not where types are checked
    """Stands for the cache of a model during one step: keys and values go to their rows."""

    _local = threading.local()

    def __init__(self, work: Work) -> None:
        super().__init__(layers=[])
        self.rows: list[Row] = [row for row, _ in work]
        self.hidden: Tensor | None = None
        self.ends: list[int] = []
        for _, tokens in work:
            self.ends.append(len(tokens) + (self.ends[-1] if self.ends else 0))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the step of the attention that this thread computes."""
        self._local.step = self
        try:
            yield
        finally:
            del self._local.step

    @classmethod
    def of_this_thread(cls) -> "_Step | None":
        return getattr(cls._local, "step", None)

    def parts(self) -> Iterator[tuple[Row, slice]]:
        """Return each row, and where its tokens are."""
        for row, begin, end in zip(self.rows, [0, *self.ends], self.ends, strict=False):
            yield row, slice(begin, end)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values, [1, heads, tokens, width]; they are returned as they are."""
        for row, part in self.parts():
            row.store(layer_idx, key_states[0, :, part], value_states[0, :, part])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: rows have lengths of their own, and positions are given."""
        return 0


def _remember(module: Any, arguments: Any, result: Any) -> None:
    """Keep the last hidden states, [1, tokens, width], of what the head makes logits of."""
    step = _Step.of_this_thread()
    if step is not None:
        step.hidden = result.last_hidden_state


def _attend_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers calls it.

    Queries are [1, heads, tokens, width], results [1, tokens, heads, width].
    """
    step = _Step.of_this_thread()
    assert step is not None
    odd = [name for name, given in options.items() if isinstance(given, Tensor) and name not in _HARMLESS]
    if odd or attention_mask is not None:
        raise Unfit(f"its attention takes {odd[0] if odd else 'a mask'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    parts = [
        attend(row, module.layer_idx, query[0, :, part], scale, sliding_window, softcap)
        for row, part in step.parts()
    ]
    return torch.cat(parts, 1).transpose(0, 1)[None], None


def _check_kind(model: Any, config: Any) -> None:
    """Refuse what a short text does not show.

    Raises:
        Unfit: positions depend on the length of the text, or layers see it in pieces.
    """
    kinds = {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    if kinds:
        raise Unfit(f"it has layers of {', '.join(sorted(map(str, kinds)))}")
    ropes = getattr(config, "rope_parameters", None) or {}
    each = [ropes, *(given for given in ropes.values() if isinstance(given, dict))]
    moving = {given.get("rope_type") for given in each} & {"dynamic", "longrope"}
    if moving:
        raise Unfit(f"its positions are {moving.pop()}")


@torch.inference_mode()
def _alone(model: Any, prompt: Sequence[int]) -> Tensor:
    """Return the logits of what follows a prompt, computed as transformers does, [vocabulary]."""
    logits: Tensor = model(input_ids=torch.tensor([[*prompt]], device=model.device)).logits[0, -1]
    return logits
