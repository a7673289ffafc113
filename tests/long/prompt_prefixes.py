"""Time to the first token where prompts begin alike, with two replicas of a language model.

python -m tests.long.prompt_prefixes [--weights FOLDER]

Needs the backend `llm` and the weights of `make chat-model`. Prompts of 512 tokens that they share and some
of their own are continued one after the other: as they are, so that those that begin alike go to the replica
which has their beginning; and, in turn, each with a `prompt_cache_key` of its own, so that any replica gets
it. Told is the mean, since with two replicas most prompts find their beginning by chance. Ends with status 1
where a prompt that is sent to its beginning takes more than `--limit` of one whose beginning nobody has read.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from tests.server import ROOT, Server

CONFIG: Final = """
backend: "llm"
instance_group { kind: KIND_CPU }
parameters { key: "ray_replicas" value { string_value: "2" } }
"""
WORDS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "old", "new")
SHARED: Final = 512
"""Words, each of which is a token."""


def words(number: int) -> str:
    """Return a text of so many words, which no other has."""
    return " ".join(random.choice(WORDS) for _ in range(number))


def first_token_s(port: int, prompt: str, key: str) -> float:
    """Return how long the first piece of a continuation takes."""
    given = {"max_tokens": 2, "temperature": 0}
    body = {"text_input": prompt, "stream": True, "sampling_parameters": json.dumps(given)}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    began = time.perf_counter()
    path = "/v2/models/text/generate_stream"
    connection.request("POST", path, json.dumps(body | ({"prompt_cache_key": key} if key else {})))
    response = connection.getresponse()
    piece = response.readline()
    found = time.perf_counter() - began
    if response.status != 200 or b"text_output" not in piece:
        raise SystemExit(f"{response.status} {piece!r}")
    response.read()
    connection.close()
    return found


class Times(NamedTuple):
    """Seconds to the first token, on average.

    Attributes:
        first: of prompts whose beginning no other had.
        later: of prompts that begin as one before.
    """

    first: float
    later: float

    def __str__(self) -> str:
        return f"{1e3 * self.first:.0f} ms, and {1e3 * self.later:.0f} where another begins alike"


def measured(port: int, near: bool, groups: int, each: int) -> Times:
    """Continue prompts of which so many begin alike; `near`: they may choose their replica by that."""
    found = list[list[float]]()
    shared = [words(SHARED) for _ in range(groups)]
    for _ in range(each):
        keys = ["" if near else str(random.random()) for _ in shared]
        prompts = [f"{beginning} {words(16)}" for beginning in shared]
        found.append([first_token_s(port, *asked) for asked in zip(prompts, keys, strict=True)])
    return Times(statistics.fmean(found[0]), statistics.fmean(chain.from_iterable(found[1:])))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    default = ROOT / "examples/chat/models/smollm2/1/weights"
    parser.add_argument(
        "--weights", type=Path, default=default, help="as transformers' save_pretrained writes them"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of either, in turn")
    parser.add_argument("--groups", type=int, default=4, help="beginnings that are shared")
    parser.add_argument("--limit", type=float, default=0.2, help="most that later ones may take of the first")
    parser.add_argument("--each", type=int, default=4, help="prompts that begin alike")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        version = Path(scratch, "models/text/1")
        version.mkdir(parents=True)
        (version / "weights").symlink_to(given.weights.resolve())
        (version / "model.json").write_text('{"model": "weights", "max_model_len": 2048}')
        (version.parent / "config.pbtxt").write_text(CONFIG)
        server = Server([f"--model-repository={scratch}/models"], Path(scratch, "log")).start()
        try:
            measured(server.http_port, True, 2, 2)
            told: dict[bool, list[Times]] = {True: [], False: []}
            for number in range(given.rounds):
                for near in (True, False) if number % 2 else (False, True):
                    times = measured(server.http_port, near, given.groups, given.each)
                    told[near].append(times)
                    print(f"{'chosen by beginning' if near else 'any replica'}: {times}", flush=True)
        finally:
            server.stop()
    chosen, other = (
        statistics.median(each.later / each.first for each in told[kind]) for kind in (True, False)
    )
    print(f"later to first, chosen by beginning: {chosen:.2f}, any replica: {other:.2f}")
    return int(chosen > given.limit)


if __name__ == "__main__":
    sys.exit(main())
