"""Texts in blocks, over a request of OpenVINO's that adds up what it finds in them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("openvino")

from backends.packaged.llm.engine.engine import Engine
from backends.packaged.llm.engine.generation import Generation
from backends.packaged.llm.engine.prefix_cache import PrefixCache
from backends.packaged.llm.engine.sampling import SamplingParameters
from backends.packaged.llm.engine.state import State
from backends.packaged.llm.openvino.batch import Batch
from backends.packaged.llm.openvino.network import Network
from tests.unit.backends.packaged.llm.engine.test_engine import ENDLESS, Reader
from tests.waiting import block_until

VOCABULARY = 1000


class Adding:
    """Keeps tokens as keys; the most probable next one is the sum of all of its text's. 666 fails."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.lengths: list[int] = []
        self.began: Callable[[], object] = lambda: None

    def create_infer_request(self) -> "Adding":
        return self

    def set_tensor(self, name: str, tensor: Any) -> None:
        self.tensors[name] = tensor

    def get_tensor(self, name: str) -> Any:
        return self.tensors[name]

    def infer(self) -> None:
        given = {name: tensor.data for name, tensor in self.tensors.items()}
        keys = given["key_cache.0"]
        self.lengths.append(len(given["input_ids"]))
        self.began()
        if 666 in given["input_ids"]:
            raise RuntimeError("out of memory")
        logits = np.zeros((len(given["past_lens"]), 1, VOCABULARY), np.float32)
        for row, past in enumerate(given["past_lens"]):
            begin, end = given["subsequence_begins"][row : row + 2]
            first, after = given["block_indices_begins"][row : row + 2]
            blocks = given["block_indices"][first:after]
            for place, token in enumerate(given["input_ids"][begin:end], past):
                assert given["position_ids"][begin + place - past] == place
                keys[blocks[place // 32], 0, place % 32, 0] = token
            length = past + end - begin
            total = sum(keys[blocks[at // 32], 0, at % 32, 0] for at in range(length))
            logits[row, 0, int(total) % VOCABULARY] = 1
        self.tensors["logits"] = _Held(logits)


class _Held:
    def __init__(self, data: Any) -> None:
        self.data = data


def made(layers: int = 1) -> tuple[Batch, Adding]:
    import openvino

    adding = Adding()
    shape = [1, 32, 2]
    network = Network(adding, [(shape, shape)] * layers, openvino.Type.f32, np.float32, VOCABULARY, False)
    return Batch(network), adding


def test_texts_side_by_side_see_their_own_tokens_alone() -> None:
    batch, _ = made()
    first, second = batch.row(), batch.row()
    assert batch.forward([(first, [1, 2, 3])]).argmax(-1).tolist() == [6]
    assert batch.forward([(second, [10] * 70), (first, [4])]).argmax(-1).tolist() == [700, 10]
    assert batch.forward([(first, [5]), (second, [7])]).argmax(-1).tolist() == [15, 707]
    assert (first.length, second.length) == (5, 71)


def test_blocks_grow_with_the_texts_and_are_used_again() -> None:
    batch, _ = made()
    long = batch.row()
    assert batch.forward([(long, [1] * 700)]).argmax(-1).tolist() == [700]
    other = batch.row()
    assert batch.forward([(other, [1] * 32 * 64)]).argmax(-1).tolist() == [32 * 64 % VOCABULARY]
    assert batch.forward([(long, [2])]).argmax(-1).tolist() == [702]
    grown = len(batch.caches[0][0])
    for row in (long, other):
        batch.free(row)
    for _ in range(9):
        row = batch.row()
        batch.forward([(row, [1] * 1000)])
        batch.free(row)
    assert len(batch.caches[0][0]) == grown


def test_growth_that_failed_in_a_later_layer_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = made(layers=2)
    zeros, left = np.zeros, [3]

    def few(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError
        return zeros(*given)

    long, short = batch.row(), batch.row()
    monkeypatch.setattr(np, "zeros", few)
    with pytest.raises(MemoryError):
        batch.forward([(long, [1] * 32 * 200)])
    monkeypatch.undo()
    assert batch.forward([(short, [1] * 32 * 70)]).argmax(-1).tolist() == [32 * 70 % VOCABULARY]
    assert batch.forward([(long, [2] * 400)]).argmax(-1).tolist() == [800]


def test_beginning_that_was_read_before_is_put_in_front_of_another_text() -> None:
    batch, adding = made()
    prefixes = PrefixCache(1 << 20)
    row: Any = batch.row()
    prompt = [3] * 64 + [5] * 30
    batch.forward([(row, prompt)])
    prefixes.keep(row, prompt, "red")
    batch.free(row)
    other: Any = batch.row()
    assert prefixes.fill(batch.row(), prompt, "green") == 0  # type: ignore[arg-type]
    assert prefixes.fill(other, prompt, "red") == 64
    assert batch.forward([(other, prompt[64:])]).argmax(-1).tolist() == [64 * 3 + 30 * 5]
    assert adding.lengths[-1] == 30


def generation(reader: Reader, prompt: list[int], tokens: int) -> Generation:
    return Generation(prompt, SamplingParameters(temperature=0, max_tokens=tokens), ENDLESS, reader)


def test_step_that_fails_ends_its_own_text_alone() -> None:
    batch, _ = made()
    engine = Engine(batch, 2, 8, 1000, 1000)
    running, failing = Reader(), Reader()
    good, bad = generation(running, [1, 2], 5), generation(failing, [666], 5)
    for each in (good, bad):
        engine.submit(each)
    engine.close()
    assert (running.ended, failing.ended) == ("length", "out of memory")
    assert good.tokens == [1, 2, 3, 6, 12, 24, 48]
    assert batch._blocks.missing(batch._blocks.count) == 0


def test_text_of_a_client_that_has_left_is_in_no_other_step() -> None:
    """It leaves during a step; the next one, if there is one, has its blocks for others."""
    batch, adding = made()
    states: list[State] = []
    engine = Engine(batch, 2, 8, 1000, 1000, observed=states.append)
    reader = Reader()
    endless = generation(reader, [0], 1 << 20)
    before = len(adding.lengths)

    def leave() -> None:
        if len(adding.lengths) == before + 70:
            reader.left, endless.next_look = True, 0.0

    adding.began = leave
    engine.submit(endless)
    block_until(lambda: reader.ended)
    engine.close()
    assert (reader.ended, len(adding.lengths)) == ("cancelled", before + 70)
    assert states[-1].running == 0 and endless.row is None
    assert batch._blocks.missing(batch._blocks.count) == 0
