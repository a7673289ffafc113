"""The engine of texts, over rows that stand for a model: the next token is the last one plus one."""

from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("torch")

import torch

from backends.packaged.llm.engine import Engine, Full, joining
from backends.packaged.llm.generation import Generation, Piece
from backends.packaged.llm.sampling import SamplingParameters
from tests.waiting import block_until

VOCABULARY = 100


class Counting:
    """Rows that count; adding the prompt [13] fails."""

    joins = True

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.most = 0

    def add(self, prompts: Sequence[Sequence[int]]) -> "torch.Tensor":
        if [13] in prompts:
            raise RuntimeError("out of memory")
        self.rows += [prompt[-1] for prompt in prompts]
        self.most = max(self.most, len(self.rows))
        return self._next([prompt[-1] for prompt in prompts])

    def step(self, tokens: Sequence[int]) -> "torch.Tensor":
        assert len(tokens) == len(self.rows)
        return self._next(tokens)

    def keep(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def _next(self, tokens: Sequence[int]) -> "torch.Tensor":
        logits = torch.zeros(len(tokens), VOCABULARY)
        for row, token in enumerate(tokens):
            logits[row, (token + 1) % VOCABULARY] = 1
        return logits


class Reader:
    """Keeps what is generated."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ended = ""
        self.left = False

    def generated(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.ended = piece.finish_reason or self.ended

    def failed(self, message: str) -> None:
        self.ended = message

    def cancelled(self) -> None:
        self.ended = "cancelled"

    def is_cancelled(self) -> bool:
        return self.left


def generation(reader: Reader, start: int = 1, tokens: int = 3) -> Generation:
    parameters = SamplingParameters(temperature=0, max_tokens=tokens)
    return Generation([start], parameters, 1 << 30, {50}, str, reader, torch.device("cpu"))


@pytest.fixture
def batch() -> Counting:
    return Counting()


@pytest.fixture
def engine(batch: Counting) -> Iterator[Engine]:
    made = Engine(batch, 2, 3, 1000)
    yield made
    made.close()


def test_texts_are_generated_together(engine: Engine, batch: Counting) -> None:
    readers = [Reader() for _ in range(2)]
    for start, reader in zip((1, 47), readers, strict=True):
        engine.submit(generation(reader, start, 1000))
    block_until(lambda: all(reader.ended for reader in readers))
    assert [(len(reader.pieces), reader.ended) for reader in readers] == [(49, "stop"), (3, "stop")]
    assert batch.rows == []


def test_failure_ends_the_texts_of_its_step(engine: Engine) -> None:
    failing, later = Reader(), Reader()
    engine.submit(generation(failing, 13))
    block_until(lambda: failing.ended)
    engine.submit(generation(later))
    block_until(lambda: later.ended)
    assert (failing.ended, later.ended) == ("out of memory", "length")


def test_cancelled_text_leaves_the_batch(engine: Engine, batch: Counting) -> None:
    reader, other = Reader(), Reader()
    endless = generation(reader, 60, 1 << 30)
    endless._ends = set()
    engine.submit(endless)
    block_until(lambda: len(reader.pieces) > 3)
    reader.left = True
    block_until(lambda: reader.ended)
    engine.submit(generation(other))
    block_until(lambda: other.ended)
    assert (reader.ended, other.ended, batch.most) == ("cancelled", "length", 1)


def test_waiting_texts_are_bounded(batch: Counting) -> None:
    engine = Engine(batch, 1, 0, 1000)
    with pytest.raises(Full):
        engine.submit(generation(Reader()))
    engine.close()


def test_close_finishes_texts(batch: Counting) -> None:
    engine = Engine(batch, 1, 3, 1000)
    readers = [Reader() for _ in range(3)]
    for reader in readers:
        engine.submit(generation(reader, tokens=30))
    engine.close()
    assert [reader.ended for reader in readers] == ["length"] * 3 and batch.most == 1
    with pytest.raises(Full):
        engine.submit(generation(Reader()))


@pytest.mark.parametrize(
    ("prompts", "free", "expected"),
    [([5, 5, 5], 2, 2), ([5, 5, 5], 0, 0), ([], 4, 0), ([50, 1], 4, 1), ([4, 4, 4], 4, 2)],
)
def test_prompts_that_join(prompts: list[int], free: int, expected: int) -> None:
    assert joining(prompts, free, budget=10) == expected
