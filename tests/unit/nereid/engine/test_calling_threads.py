"""Threads that wait for their responses, and do the engine's work meanwhile."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

import nereid.inprocess as tritonserver
from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse
from deployments.event_loop_execution import policy
from nereid.engine.engine import Engine
from nereid.engine.sent import Waiting
from tests.unit.nereid.engine.repositories import FP32, add_ensemble, add_model
from tests.waiting import block_until

ROW = np.array([1.0, 2.0], np.float32)
BATCHED = FP32 + "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 300 }\n"
CALL = """
responses = []
for request in requests:
    call = pb_utils.InferenceRequest(
        model_name={!r}, requested_output_names=['OUT'], inputs=request.inputs()
    )
    responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
return responses
"""
ALLOWED = {
    "goes": (ErrorCode.NOT_FOUND, ErrorCode.UNAVAILABLE),
    "timeout": (ErrorCode.UNAVAILABLE,),
    "cancel": (ErrorCode.UNAVAILABLE,),  # clients that leave late, as on a busy machine, teach it to refuse
}
ANSWERED = {"double", "chain", "caller", "batched", "submit", "iterator"}
WARM_CALLS = 2 * policy.REQUIRED_RUNS
THREADS = 6


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine whose models, but for "threaded", "goes" and "left", execute on its loop."""
    monkeypatch.setattr(policy, "SHORT_NS", 10**12)  # whatever the machine
    monkeypatch.setattr(policy, "LONG_NS", 10**12)
    add_model(tmp_path, "double")
    add_model(tmp_path, "threaded", head="import threading\n")
    add_model(tmp_path, "goes", head="import threading\n")
    add_model(tmp_path, "left", CALL.format("threaded"))
    add_model(tmp_path, "batched", config=BATCHED)
    add_model(tmp_path, "caller", CALL.format("double"))
    add_model(tmp_path, "waiter", CALL.format("threaded"))
    add_ensemble(tmp_path, "chain", "double", "waiter")
    explicit = {"model_control_mode": "explicit", "load_model": ["*"], "exit_timeout_secs": 1}
    with Engine.open(model_repository=[str(tmp_path)], **explicit) as made:
        for name in ("double", "batched", "caller", "waiter", "chain"):
            warm(made, name)
        yield made


def warm(engine: Engine, model: str) -> None:
    """Call a model until it executes on the loop; in another thread, as a call may hang."""
    inputs = {"IN": ROW[None]} if model == "batched" else {"IN": ROW}
    run_threads([lambda: [engine.infer(model, inputs) for _ in range(WARM_CALLS)]])


def run_threads(works: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    for thread in threads:
        thread.join(deadline - time.monotonic())
    assert not any(thread.is_alive() for thread in threads), "a call has no response"


def answering_thread(engine: Engine, model: str, waits: bool) -> int:
    """Return the thread that has delivered the answer to a call of this one."""
    answered: SimpleQueue[int] = SimpleQueue()
    engine.send(engine.request(model, {"IN": ROW}), lambda _: answered.put(threading.get_ident()), waits)
    return answered.get(timeout=60)


def test_a_short_call_is_answered_by_the_thread_that_waits_for_it(engine: Engine) -> None:
    here = threading.get_ident()
    block_until(lambda: answering_thread(engine, "double", waits=True) == here)
    for model in ("threaded", "caller", "waiter"):  # on its own thread, or suspended while it waits
        assert answering_thread(engine, model, waits=True) != here
    assert answering_thread(engine, "double", waits=False) != here
    with Engine(engine.settings, lends_loop=False) as other:
        other.start()
        warm(other, "double")
        assert answering_thread(other, "double", waits=True) != here


def test_a_thread_gives_way_to_others_that_have_their_responses() -> None:
    waiting, kept = Waiting(), []

    def kept_of_64() -> int:
        return [waiting.may_call_here() for _ in range(64)].count(True)

    class Responses(SimpleQueue[InferResponse]):
        def get(self, *_: object) -> InferResponse:
            kept.append(kept_of_64())
            self.put(InferResponse())
            kept.append(kept_of_64())
            return super().get()

    waiting.next(Responses())
    assert kept == [64, 60] and kept_of_64() == 64
    read: SimpleQueue[InferResponse] = SimpleQueue()
    read.put(InferResponse())
    waiting.next(read)
    assert read.empty()


class Stress:
    """Threads that call all models while one is unloaded and loaded again."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._until = time.monotonic() + seconds
        self._give_up = self._until + 8
        self.wrong: list[object] = []
        self.answered: Counter[str] = Counter()
        self._ways: dict[str, tuple[Callable[[], object], float]] = {
            "double": (self._one("double"), 2),
            "chain": (self._one("chain"), 4),
            "caller": (self._one("caller"), 2),
            "threaded": (self._one("threaded"), 2),
            "goes": (self._one("goes"), 2),
            "batched": (lambda: engine.infer("batched", {"IN": ROW[None]})["OUT"][0].tolist(), 2),
            "timeout": (
                lambda: engine.infer("batched", {"IN": ROW[None]}, timeout_us=1)["OUT"][0].tolist(),
                2,
            ),
            "submit": (lambda: engine.submit("double", {"IN": ROW}).result(60)["OUT"].tolist(), 2),
            "cancel": (self._cancelled, 2),
            "iterator": (self._iterated, 2),
        }

    def _one(self, model: str) -> Callable[[], object]:
        return lambda: self._engine.infer(model, {"IN": ROW})["OUT"].tolist()

    def _cancelled(self) -> object:
        future = self._engine.submit("left", {"IN": ROW})
        return [2, 4] if future.cancel() else future.result(60)["OUT"].tolist()

    def _iterated(self) -> object:
        model = tritonserver.Model(self._engine, "double")
        first, second = (model.infer(inputs={"IN": ROW * factor}) for factor in (1, 2))
        assert np.from_dlpack(next(second).outputs["OUT"]).tolist() == [4, 8]
        return np.from_dlpack(next(first).outputs["OUT"]).tolist()

    def goes_on(self) -> bool:
        """Whether there is time, or, on a busy machine, a call that must be answered was not yet."""
        now = time.monotonic()
        return now < self._until or (now < self._give_up and not self.answered.keys() >= ANSWERED)

    def call(self, seed: int) -> None:
        choose = random.Random(seed)
        while self.goes_on():
            self.call_once(choose.choice(list(self._ways)))

    def call_once(self, name: str) -> None:
        way, factor = self._ways[name]
        try:
            if (found := way()) != [factor, 2 * factor]:
                self.wrong.append((name, found))
            self.answered[name] += 1
        except InferError as error:
            if error.code not in ALLOWED.get(name, ()):
                self.wrong.append((name, error))
        except Exception as error:
            self.wrong.append((name, error))

    def reload(self) -> None:
        while self.goes_on():
            self._engine.unload("goes")
            self._engine.load("goes")


def test_threads_call_models_that_come_and_go(engine: Engine) -> None:
    stress = Stress(engine, 0.7)
    run_threads([*(partial(stress.call, seed) for seed in range(THREADS)), stress.reload])
    assert not stress.wrong, stress.wrong[:3]
    assert stress.answered.keys() >= ANSWERED
    channels = [replica.channel for replica in engine._applications.replicas.values()]
    block_until(lambda: not any(channel.outstanding for channel in channels))
    run_threads(
        [partial(stress.call_once, name) for name in ("double", "chain", "goes")]
    )  # no instance is lost
    assert not stress.wrong, stress.wrong[:3]
