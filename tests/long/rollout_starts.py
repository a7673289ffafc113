"""Starts rollouts while other operations on the model run, and looks whether a good version is ever barred.

python -m tests.long.rollout_starts --rounds 50

In each round a new version appears, and at random times within some seconds its rollout is started by two
people, while the model is loaded, unloaded or polled. Each start has to be carried out, or refused with a
reason; whatever came of it, the version has to serve once it is asked for again. Ends with 1 if it does not.
"""

import argparse
import itertools
import json
import random
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.long.plants import PLANTS
from tests.long.rollout_bench import OVER, Rollout, at_once, call, served
from tests.long.rollout_load import Load, Stream
from tests.long.rollout_models import Candidate, Model
from tests.long.server import say
from tests.server import Server, wait_until

_POLICY: Final[dict[str, Any]] = {
    "steps": [50],
    "step": {"min_seconds": 1, "min_requests": 5, "max_seconds": 60},
    "keep_stable_seconds": 0,
    "judge": {"latency": None, "compute": None},
}
_REFUSALS: Final = re.compile(
    "is on already|there is nothing to roll out|no version of model '[^']*' is loaded"
    "|was unloaded|another (load|unload)|a rollout is on|ended by"
)
"""Reasons that are true in these rounds."""
_OTHERS: Final = {
    "explicit": (("load",), ("unload",), ("load", "unload"), ("unload", "load"), ("load", "load"), ()),
    "poll": ((),),
}
"""What runs beside two starts, by the mode of control."""
_WITHIN_S: Final = 2.0
_MODELS: Final = 4
_PATIENCE_S: Final = 90.0

Answer = tuple[str, int, dict[str, Any]]


class Round:
    """One new version of a model, and what is done to it."""

    def __init__(self, server: Server, model: Model, version: int, mode: str, chance: random.Random) -> None:
        self._server = server
        self._model = model
        self._version = version
        self._mode = mode
        self._random = chance
        self._rollout = Rollout(server, model)

    def run(self, repository: Path) -> list[str]:
        """Return what is not as it should be."""
        others = self._random.choice(_OTHERS[self._mode])
        self._model.write(repository, self._version, Candidate())
        operations = [partial(self._later, name) for name in ("start", "start", *others)]
        answers: list[Answer] = at_once(operations)
        faults = [fault for answer in answers for fault in _faults(*answer)]
        state = self._settled()
        if state in ("failed", "paused"):
            faults.append(f"the rollout is {state}: {self._rollout.status['reason']}")
        faults += self._barred()
        told = ", ".join(f"{name} {code}" for name, code, _ in answers)
        say(f"{self._model.name} version {self._version}: {told}; {state}{'' if not faults else ' FAULT'}")
        for why in {answer["error"] for _, code, answer in answers if code != 200 and "error" in answer}:
            say(f"    refused: {why[:150]}")
        for fault in faults:
            say(f"    {fault[:300]}")
        return faults

    def _later(self, operation: str) -> Answer:
        time.sleep(self._random.random() * _WITHIN_S)
        return (operation, *self._do(operation))

    def _do(self, operation: str) -> tuple[int, dict[str, Any]]:
        name = self._model.name
        if operation == "start":
            path = f"repository/models/{name}/rollout"
            return call(self._server, path, {"action": "start", "spec": _POLICY})
        return call(self._server, f"repository/models/{name}/{operation}", {})

    def _settled(self) -> str:
        """Return the state once no rollout is on."""
        deadline = time.monotonic() + _PATIENCE_S
        while (state := self._rollout.look()) not in OVER and time.monotonic() < deadline:
            if "error" in self._rollout.status:
                return "no rollout"
            time.sleep(0.3)
        return state

    def _barred(self) -> list[str]:
        """Ask for the version again; return why it does not serve."""
        if self._mode == "explicit":
            code, answer = self._do("load")
            if code != 200:
                return [f"it cannot be loaded: {answer}"]
        self._settled()
        if self._serves():
            return []
        code, answer = self._do("start")
        if code != 200 and not self._serves():
            return [f"it does not serve, and a start is refused: {answer}"]
        try:
            wait_until(self._serves, _PATIENCE_S, "")
        except AssertionError:
            return [f"it does not serve: {self._settled()}, {self._rollout.status}"]
        self._settled()
        return []

    def _serves(self) -> bool:
        """Whether requests without a version mean this one."""
        given = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
        for _ in range(4):  # half of them may get it during the rollout
            _, answer = call(self._server, f"models/{self._model.name}/infer", {"inputs": [given]})
            if answer.get("model_version") != str(self._version):
                return False
        return True


def _faults(operation: str, code: int, answer: dict[str, Any]) -> list[str]:
    why = str(answer.get("error", ""))
    refused = 400 <= code < 500 and (operation != "start" or _REFUSALS.search(why))
    return [] if code == 200 or refused else [f"{operation} was answered by {code}: {why}"]


def run(mode: str, rounds: int, plant: str, seed: int) -> list[str]:
    """Run rounds with a server in one mode; return the faults."""
    models = [Model(f"m{number}", "http") for number in range(_MODELS)]
    flags = [f"--model-control-mode={mode}", "--repository-poll-secs=1"]
    if mode == "explicit":
        flags += [f"--load-model={model.name}" for model in models]
    streams = [Stream(model.name, "http", 20.0) for model in models]
    with (
        served(models, plant, *flags) as (server, repository),
        Load(server.http_url, server.grpc_url, streams),
    ):
        # Half of the models have a policy: loads and polls of these begin rollouts too.
        for model in models[::2]:
            (repository / model.name / "rollout.yaml").write_text(json.dumps(_POLICY))

        def go_on(model: Model, share: int) -> list[str]:
            found = []
            for version in range(2, share + 2):
                chance = random.Random(f"{seed} {mode} {model.name} {version}")
                found += Round(server, model, version, mode, chance).run(repository)
            return found

        calls: list[Callable[[], list[str]]] = [partial(go_on, m, -(-rounds // _MODELS)) for m in models]
        return list(itertools.chain(*at_once(calls)))


def main() -> int:
    """Run the rounds; return 0 if none has a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="in each mode of control")
    parser.add_argument("--mode", action="append", choices=list(_OTHERS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    say(f"seed {given.seed}")
    faults = []
    for mode in given.mode or list(_OTHERS):
        say(f"mode {mode}")
        faults += run(mode, given.rounds, given.plant, given.seed)
    say(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
