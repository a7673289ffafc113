"""The engine of texts, over rows that stand for a model: the next token is the last one plus one."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch

from backends.packaged.llm.engine import engine as engine_module
from backends.packaged.llm.engine.choice import Choice, RequestError
from backends.packaged.llm.engine.engine import Engine, Full
from backends.packaged.llm.engine.generation import Generation, ModelFacts, Piece
from backends.packaged.llm.engine.prefix_cache import PrefixCache
from backends.packaged.llm.engine.reading import Embedding
from backends.packaged.llm.engine.rows import Row
from backends.packaged.llm.engine.sampling import SamplingParameters
from tests.waiting import block_until

VOCABULARY = 100
FACTS = ModelFacts(1 << 30, {50}, VOCABULARY, torch.device("cpu"), str, str)
ENDLESS = FACTS._replace(ends=())


class Counting:
    """Rows that count; a prompt of -13 fails, one of 8 later, and with them all that are read beside them."""

    joins = True

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.freed = 0
        self.open = threading.Event()
        self.open.set()

    def row(self, adapter: str = "") -> list[int]:
        return []

    def free(self, row: Any) -> None:
        self.freed += 1

    def forward(self, work: Sequence[tuple[list[int], Sequence[int]]]) -> "torch.Tensor":
        self.open.wait(60)
        self.steps.append([len(tokens) for _, tokens in work])
        if any(-13 in tokens or (row[:1] == [8] and len(row) == 5) for row, tokens in work):
            raise RuntimeError("out of memory")
        logits = torch.zeros(len(work), VOCABULARY)
        for index, (row, tokens) in enumerate(work):
            row.extend(tokens)
            logits[index, (row[-1] + 1) % VOCABULARY] = 1
        return logits

    @property
    def most(self) -> int:
        return max(map(len, self.steps))


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

    def invalid(self, message: str) -> None:
        self.ended = f"invalid: {message}"

    def cancelled(self) -> None:
        self.ended = "cancelled"

    def is_cancelled(self) -> bool:
        return self.left


def generation(reader: Reader, start: int = 1, tokens: int = 3) -> Generation:
    parameters = SamplingParameters(temperature=0, max_tokens=tokens)
    return Generation([start], parameters, FACTS, reader)


@pytest.fixture
def batch() -> Counting:
    return Counting()


@pytest.fixture
def engine(batch: Counting) -> Iterator[Engine]:
    made = Engine(batch, 2, 8, 1000, 1000)
    yield made
    made.close()


def test_texts_are_generated_together(engine: Engine, batch: Counting) -> None:
    readers = [Reader() for _ in range(2)]
    batch.open.clear()
    for start, reader in zip((1, 47), readers, strict=True):
        engine.submit(generation(reader, start, 1000))
    batch.open.set()
    block_until(lambda: all(reader.ended for reader in readers))
    assert [(len(reader.pieces), reader.ended) for reader in readers] == [(49, "stop"), (3, "stop")]
    assert batch.most == 2


def test_failure_ends_its_own_text_alone(engine: Engine, batch: Counting) -> None:
    """The text that fails is read beside another, or comes to what fails after a while."""
    readers = [Reader() for _ in range(4)]
    for start, reader in zip((60, -13, 8, 40), readers, strict=True):
        engine.submit(generation(reader, start, 9))
    block_until(lambda: all(reader.ended for reader in readers))
    assert [reader.ended for reader in readers] == ["length", "out of memory", "out of memory", "length"]
    assert [len(reader.pieces) for reader in readers] == [9, 0, 5, 9]


def test_choice_that_fails_ends_its_own_text_alone(engine: Engine) -> None:
    failing, other = Reader(), Reader()
    broken = generation(failing, tokens=1000)
    broken.choice = Choice(SamplingParameters(logit_bias={1 << 20: 1.0}), [1], torch.device("cpu"))
    for each in (broken, generation(other, 60, 9)):
        engine.submit(each)
    block_until(lambda: failing.ended and other.ended)
    assert "out of bounds" in failing.ended and other.ended == "length"


class Guide:
    """Allows everything, and keeps the tokens that it learns of; comes to its limit after some."""

    def __init__(self, limit: int) -> None:
        self.tokens: list[int] = []
        self._limit = limit

    def mask(self, logits: torch.Tensor) -> None:
        pass

    def chosen(self, token: int) -> bool:
        if len(self.tokens) == self._limit:
            raise RequestError("too complex")
        self.tokens.append(token)
        return False


def test_guide_at_its_limit_ends_its_own_text_alone_and_is_the_clients_mistake(
    engine: Engine, batch: Counting
) -> None:
    readers, guides = [Reader(), Reader()], [Guide(99), Guide(3)]
    batch.open.clear()
    for start, reader, guide in zip((10, 70), readers, guides, strict=True):
        parameters = SamplingParameters(temperature=0, max_tokens=9)
        engine.submit(Generation([start], parameters, FACTS, reader, guide=guide))
    batch.open.set()
    block_until(lambda: all(reader.ended for reader in readers))
    assert [reader.ended for reader in readers] == ["length", "invalid: too complex"]
    assert guides[0].tokens == list(range(11, 20)) and len(readers[0].pieces) == 9


def test_long_prompt_is_read_beside_running_texts(engine: Engine, batch: Counting) -> None:
    running, long = Reader(), Reader()
    endless = generation(running, 60, 1 << 30)
    endless._ends = set()
    engine.submit(endless)
    block_until(lambda: running.pieces)
    parameters = SamplingParameters(temperature=0, max_tokens=1)
    prompt = [1] * 5000
    engine.submit(Generation(prompt, parameters, FACTS, long))
    block_until(lambda: long.ended)
    running.left = True
    block_until(lambda: running.ended)
    beside = [step for step in batch.steps if len(step) > 1]
    assert sum(sum(step) - 1 for step in beside) == 5000 and len(beside) >= 5


def test_model_that_reads_one_text_at_a_time_reads_a_prompt_at_once() -> None:
    batch = Counting()
    batch.joins = False
    engine = Engine(batch, 2, 3, 1000, 1000)
    readers = [Reader(), Reader()]
    parameters = SamplingParameters(temperature=0, max_tokens=2)
    for reader in readers:
        engine.submit(Generation([1] * 5000, parameters, FACTS, reader))
    engine.close()
    assert batch.steps == [[5000], [1]] * 2 and [reader.ended for reader in readers] == ["length"] * 2


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


def test_cancelled_text_that_waits_makes_room_for_another(
    batch: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LOOK_AT_WAITING_S", 0.0)
    engine = Engine(batch, 1, 1, 1000, 1000)
    running, waiting, other = Reader(), Reader(), Reader()
    engine.submit(Generation([60], SamplingParameters(temperature=0, max_tokens=1 << 30), ENDLESS, running))
    block_until(lambda: len(running.pieces) > 3)
    engine.submit(generation(waiting))
    with pytest.raises(Full):
        engine.submit(generation(other))
    waiting.left = True
    block_until(lambda: waiting.ended)
    block_until(lambda: not engine._waiting)
    engine.submit(generation(other))
    assert waiting.ended == "cancelled" and not running.ended
    running.left = True
    block_until(lambda: other.ended)
    engine.close()


class Overwriting(Counting):
    """The same with logits that the next step writes over, as those of OpenVINO."""

    logits: torch.Tensor | None = None

    def forward(self, work: Sequence[tuple[list[int], Sequence[int]]]) -> "torch.Tensor":
        found = super().forward(work)
        if self.logits is None or self.logits.shape != found.shape:
            self.logits = found
        self.logits[:] = found
        return self.logits


def test_texts_that_are_tried_alone_keep_their_own_logits() -> None:
    batch = Overwriting()
    batch.open.clear()
    engine = Engine(batch, 3, 8, 1000, 1000)
    readers = [Reader() for _ in range(3)]
    made = [generation(reader, start) for start, reader in zip((20, -13, 30), readers, strict=True)]
    for each in made:
        engine.submit(each)
    batch.open.set()
    engine.close()
    assert [reader.ended for reader in readers] == ["length", "out of memory", "length"]
    assert [made[0].tokens, made[2].tokens] == [[20, 21, 22, 23], [30, 31, 32, 33]]


def test_waiting_texts_are_bounded(batch: Counting) -> None:
    engine = Engine(batch, 1, 0, 1000, 1000)
    with pytest.raises(Full):
        engine.submit(generation(Reader()))
    engine.close()


def test_close_finishes_texts(batch: Counting) -> None:
    engine = Engine(batch, 1, 3, 1000, 1000)
    readers = [Reader() for _ in range(3)]
    for reader in readers:
        engine.submit(generation(reader, tokens=30))
    engine.close()
    assert [reader.ended for reader in readers] == ["length"] * 3 and batch.most == 1
    with pytest.raises(Full):
        engine.submit(generation(Reader()))


class Kept(Counting):
    """The same with rows of keys, which are the tokens."""

    def row(self, adapter: str = "") -> Any:
        return Row(1, adapter)

    @torch.inference_mode()
    def forward(self, work: Sequence[tuple[Any, Sequence[int]]]) -> "torch.Tensor":
        self.steps.append([len(tokens) for _, tokens in work])
        logits = torch.zeros(len(work), VOCABULARY)
        for index, (row, tokens) in enumerate(work):
            keys = torch.tensor([[[float(token)] for token in tokens]])
            row.store(0, keys, keys)
            row.length += len(tokens)
            logits[index, (int(row.read(0, 0, row.length)[0].sum()) + 1) % VOCABULARY] = 1
        return logits


@pytest.mark.parametrize(("salts", "read"), [(("a", "a"), 22), (("a", "b"), 150)])
def test_beginning_that_was_read_before_is_shared(salts: tuple[str, str], read: int) -> None:
    batch = Kept()
    prefixes = PrefixCache(1 << 20)
    engine = Engine(batch, 2, 3, 1000, 1000, prefixes)
    readers, texts = [Reader(), Reader()], []
    for salt, reader in zip(salts, readers, strict=True):
        parameters = SamplingParameters(temperature=0, max_tokens=5, cache_salt=salt)
        made = Generation([3] * 150, parameters, ENDLESS, reader)
        batch.steps.clear()
        engine.submit(made)
        block_until(lambda reader=reader: reader.ended)  # type: ignore[misc]
        texts.append(made.tokens)
    engine.close()
    assert sum(map(sum, batch.steps)) == read + 4 and texts[0] == texts[1]
    assert made.cached == 150 - read


class Vectors(Kept):
    """The same with the keys' sum as hidden state."""

    def forward(self, work: Sequence[tuple[Any, Sequence[int]]]) -> "torch.Tensor":
        logits = super().forward(work)
        for row, _ in work:
            row.hidden = torch.tensor([float(row.read(0, 0, row.length)[0].sum()), 4.0, 12.0])
        return logits


class VectorReader(Reader):
    """Keeps a vector."""

    vector: list[float]

    def embedded(self, vector: list[float]) -> None:
        self.vector, self.ended = vector, "vector"


def test_vectors_beside_texts() -> None:
    engine = Engine(Vectors(), 4, 3, 1000, 1000)
    long, short, text, bad = VectorReader(), VectorReader(), Reader(), Reader()
    engine.submit(Embedding([1, 2], long))
    engine.submit(Embedding([3], short, dimensions=2))
    engine.submit(generation(text, 60, 5))
    engine.close()
    assert long.vector == pytest.approx([3 / 13, 4 / 13, 12 / 13]) and short.vector == pytest.approx(
        [0.6, 0.8]
    )
    assert text.ended == "length"
    engine = Engine(Counting(), 4, 3, 1000, 1000)
    engine.submit(Embedding([1], cast(Any, bad)))
    engine.close()
    assert bad.ended == "the model gives no vectors"
