"""Asks the present form of a model and a candidate for the same rows in turn: answers and processor time."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Final

import numpy as np

from app.core.errors import InferError
from app.core.tensors import InferResponse, Tensor
from nereid.engine.engine import Engine
from nereid.optimise.trials.forms import CANDIDATE, PRESENT
from nereid.optimise.trials.rows import Array
from nereid.optimise.trials.verdict import Bad, Seen, Wanted, hopeless, ratios
from nereid_client.comparison.compare import compare
from nereid_client.comparison.counts import Comparison
from nereid_client.comparison.rules import ComparisonRules

_WARM_UP: Final = 3
_NOISE: Final = 32
"""Blocks of which the present form is asked for a row twice."""
_LEAST_S: Final = 0.02
"""Of the time of a block: the system counts that of other threads in steps."""
_REPEATS: Final = 50
_BLOCK: Final = 8
_LOOK: Final = 4
"""Blocks of rows from one look at what was seen to the next."""

Rows = Iterator[tuple[str, Mapping[str, Array]]]
Answer = tuple[Tensor, ...] | str
"""Outputs, or why there are none."""


class Pair:
    """Both forms, loaded in one engine; closes it as a context manager.

    Raises:
        InferError: one of them cannot be loaded.
    """

    def __init__(self, models: Path) -> None:
        self._engine = Engine.open(model_repository=[str(models)], model_control_mode="explicit")
        try:
            self.megabytes = {name: self._load(name) for name in (PRESENT, CANDIDATE)}
        except BaseException:
            self._engine.close()
            raise

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def _load(self, name: str) -> float:
        """Load a model; return by how much this process has grown, in MB."""
        before = _resident()
        self._engine.load(name)
        return (_resident() - before) / 1e6

    def ask(self, name: str, inputs: Mapping[str, Array]) -> tuple[Tensor, ...]:
        """Return the outputs.

        Raises:
            InferError: the request fails.
        """
        engine = self._engine
        responses: SimpleQueue[InferResponse] = SimpleQueue()
        engine.send(engine.request(name, inputs), responses.put, waits=True)
        response = engine.next(responses)
        response.raise_error()
        return response.outputs


class Trial:
    """Compares both forms over rows.

    Args:
        pair: both.
        rules: what may differ.
        wanted: what the candidate has to show.
        rows: how many there are.
        tell: is told what was seen, now and then.
        clock: returns seconds; of the processor, unless a GPU computes.
    """

    def __init__(
        self,
        pair: Pair,
        rules: ComparisonRules,
        wanted: Wanted,
        rows: int,
        tell: Callable[[Seen], None],
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock = clock
        self._pair, self._rules, self._wanted, self._rows, self._tell = pair, rules, wanted, rows, tell
        self._comparison = Comparison(rules)
        self._present: list[float] = []
        self._candidate: list[float] = []
        self._noise = 0.0
        self._repeats = 1
        self._met: set[tuple[tuple[int, ...], ...]] = set()

    def run(self, rows: Rows) -> Seen:
        """Compare until the rows end, or a candidate cannot fit any more; return what was seen."""
        gc.collect()
        gc.disable()  # or one of the two would pay for what both leave behind
        try:
            return self._run(rows)
        finally:
            gc.enable()

    def _run(self, rows: Rows) -> Seen:
        for number in count():
            block = list(islice(rows, _BLOCK))
            if not block:
                break
            if not number:
                self._warm_up(block[0][1])
            self._block(block, number % 2 == 0)
            if number % _LOOK == _LOOK - 1:
                gc.collect()
                seen = self._seen()
                self._tell(seen)
                if hopeless(seen, self._wanted):
                    break
        return self._seen()

    def _warm_up(self, inputs: Mapping[str, Array]) -> None:
        times = []
        for name in (PRESENT, CANDIDATE) * _WARM_UP:
            started = time.perf_counter()
            self._answer(name, inputs)
            times.append(time.perf_counter() - started)
        took = min(times[1::2])  # of the candidate; one that waited for the machine took longer
        self._repeats = min(max(round(_LEAST_S / max(_BLOCK * took, 1e-6)), 1), _REPEATS)

    def _block(self, block: Sequence[tuple[str, Mapping[str, Array]]], present_first: bool) -> None:
        """Ask each form for a block of rows: in turn for each, both would find caches of the other."""
        inputs = [each for _, each in block]
        order = (PRESENT, CANDIDATE) if present_first else (CANDIDATE, PRESENT)
        self._meet(inputs)
        answers = {name: self._answers(name, inputs) for name in order}
        expected, took = answers[PRESENT]
        answered, took_candidate = answers[CANDIDATE]
        for (key, _), a, b in zip(block, expected, answered, strict=True):
            if isinstance(a, str):
                continue  # the present form refuses it too: it says nothing
            if isinstance(b, str):
                self._comparison.fail(key, b)
            else:
                self._comparison.add(key, a, b)
        if not any(isinstance(each, str) for each in (*expected, *answered)):
            self._present.append(took / len(block))
            self._candidate.append(took_candidate / len(block))
        if len(self._present) <= _NOISE:
            self._noise = max(self._noise, self._differs_from_itself(inputs[0], expected[0]))

    def _meet(self, inputs: Sequence[Mapping[str, Array]]) -> None:
        """Ask both forms for shapes that they have not met, which some prepare for: a server has met them."""
        for each in inputs:
            shapes = tuple(np.shape(array) for array in each.values())
            if shapes not in self._met:
                self._met.add(shapes)
                for name in (PRESENT, CANDIDATE):
                    self._answer(name, each)

    def _answers(self, name: str, inputs: Sequence[Mapping[str, Array]]) -> tuple[list[Answer], float]:
        """Return answers, and the seconds of processor time that each of the repetitions took.

        The answers are those of one more: a server keeps none, and its next answer lies in the same memory.
        """
        started = self._clock()
        for _ in range(self._repeats):
            for each in inputs:
                self._answer(name, each)
        took = (self._clock() - started) / self._repeats
        return [self._answer(name, each) for each in inputs], took

    def _answer(self, name: str, inputs: Mapping[str, Array]) -> Answer:
        """Return outputs, or why there are none."""
        try:
            return self._pair.ask(name, inputs)
        except InferError as error:
            return error.message

    def _differs_from_itself(self, inputs: Mapping[str, Array], answer: Answer) -> float:
        again = self._answer(PRESENT, inputs)
        if isinstance(again, str) or isinstance(answer, str):
            return 0.0
        return compare(self._rules, answer, again).severity

    def _seen(self) -> Seen:
        found, failed = self._comparison, self._comparison.failed.total()
        ratio, low, high = ratios(self._present, self._candidate)
        outputs = found.outputs.values()
        return Seen(
            self._rows,
            found.compared + failed,
            found.bad + failed,
            found.near_ties,
            max((each.absolute for each in outputs), default=0.0),
            min((each.cosine for each in outputs), default=1.0),
            self._noise,
            _ms(self._present),
            _ms(self._candidate),
            ratio,
            low,
            high,
            self._pair.megabytes[CANDIDATE],
            self._pair.megabytes[PRESENT],
            shapes=len(self._met),
            worst=tuple(Bad(each.row, each.severity, each.why) for each in found.worst),
        )


def _ms(seconds: list[float]) -> float:
    return median(seconds) * 1e3 if seconds else 0.0


def _resident() -> int:
    fields: list[Any] = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
