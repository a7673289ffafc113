"""What long prompts cost the texts beside them, and what a beginning that was read before saves."""

import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from backends.packaged.llm.engine.batch import make_batch
from backends.packaged.llm.engine.engine import Engine
from backends.packaged.llm.engine.generation import Generation, ModelFacts, Piece
from backends.packaged.llm.engine.prefix_cache import PrefixCache
from backends.packaged.llm.engine.sampling import SamplingParameters

VOCABULARY = 4096
LONG = 4000
FACTS = ModelFacts(8192, (), VOCABULARY, torch.device("cpu"), str, str)


class Reader:
    """Keeps when pieces came, and their tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.texts: list[str] = []
        self.ended = threading.Event()
        self.error = ""
        self.left = False

    def generated(self, piece: Piece) -> None:
        self.times.append(time.monotonic())
        self.texts.append(piece.text)
        if piece.finish_reason:
            self.ended.set()

    def invalid(self, message: str) -> None:
        raise AssertionError(message)

    def failed(self, message: str) -> None:
        self.error = message
        self.ended.set()

    def cancelled(self) -> None:
        self.ended.set()

    def is_cancelled(self) -> bool:
        return self.left


@pytest.fixture(scope="module")
def batch() -> Any:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    shape = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 8192}
    return make_batch(LlamaForCausalLM(LlamaConfig(**shape, **heads)).eval())


@pytest.fixture
def engine(batch: Any) -> Iterator[Engine]:
    made = Engine(batch, 4, 8, 2048, 8192, PrefixCache(1 << 30))
    yield made
    made.close()


def begin(engine: Engine, prompt: Sequence[int], tokens: int, salt: str = "") -> Reader:
    reader = Reader()
    parameters = SamplingParameters(temperature=0, max_tokens=tokens, cache_salt=salt)
    engine.submit(Generation(prompt, parameters, FACTS, reader))
    return reader


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def test_running_text_goes_on_while_a_long_prompt_is_read(engine: Engine) -> None:
    """The gap between its tokens is at most twice what it is alone."""
    running = begin(engine, [1, 2, 3], 4000)
    while len(running.times) < 60:
        time.sleep(0.01)
    before = len(running.times)
    long = begin(engine, torch.randint(0, VOCABULARY, (LONG,)).tolist(), 1)
    assert long.ended.wait(100) and not long.error
    during = len(running.times)
    while len(running.times) < during + 60:
        time.sleep(0.01)
    running.left = True
    alone = statistics.median(gaps(running.times[10:before]) + gaps(running.times[during + 5 :]))
    beside = statistics.median(gaps(running.times[before:during]))
    print(f"{alone * 1e3:.1f} ms alone, {beside * 1e3:.1f} ms beside, {during - before} tokens meanwhile")
    assert beside <= 2 * alone


def test_shared_beginning_is_read_once(engine: Engine) -> None:
    """The first token takes a fifth of the time, and texts are the same."""
    shared = torch.randint(0, VOCABULARY, (512,)).tolist()
    first, known, texts = list[float](), list[float](), dict[str, list[str]]()
    for turn in range(5):
        prompt = [*shared, turn, turn + 1, turn + 2]
        for salt, times in ((str(turn), first), ("known", known)):
            began = time.monotonic()
            reader = begin(engine, prompt, 20, salt)
            assert reader.ended.wait(60)
            times.append(reader.times[0] - began)
            texts[salt] = reader.texts
        assert texts["known"] == texts[str(turn)]
    ratio = statistics.median(known[1:]) / statistics.median(first)
    print(f"first token {statistics.median(first) * 1e3:.1f} ms, {ratio:.2f} of it where 512 are shared")
    assert ratio <= 0.2
