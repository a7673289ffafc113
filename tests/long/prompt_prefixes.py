"""Time to the first token where prompts begin alike, with two replicas of a language model.

python -m tests.long.prompt_prefixes [--weights FOLDER]

Needs the backend `llm` and the weights of `make chat-model`. Prompts of 512 tokens that they share and some
of their own are continued one after the other: as they are, so that those that begin alike go to the replica
which has their beginning; and, in turn, each with a `prompt_cache_key` of its own, so that any replica gets
it. Ends with status 1 where the first is not faster.
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
from pathlib import Path
from typing import Final

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


def later_ones(port: int, near: bool, groups: int, each: int) -> list[float]:
    """Return the times of prompts that are not the first of those that begin alike."""
    found = []
    shared = [words(SHARED) for _ in range(groups)]
    for number in range(each):
        for beginning in shared:
            key = "" if near else str(random.random())
            took = first_token_s(port, f"{beginning} {words(16)}", key)
            if number:
                found.append(took)
    return found


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    default = ROOT / "examples/chat/models/smollm2/1/weights"
    parser.add_argument(
        "--weights", type=Path, default=default, help="as transformers' save_pretrained writes them"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of either, in turn")
    parser.add_argument("--groups", type=int, default=4, help="beginnings that are shared")
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
            later_ones(server.http_port, True, 2, 2)
            told: dict[bool, list[float]] = {True: [], False: []}
            for number in range(given.rounds):
                for near in (True, False) if number % 2 else (False, True):
                    median = statistics.median(later_ones(server.http_port, near, given.groups, given.each))
                    told[near].append(median)
                    print(
                        f"{'chosen by beginning' if near else 'any replica'}: {1e3 * median:.0f} ms",
                        flush=True,
                    )
        finally:
            server.stop()
    ratios = [near / far for near, far in zip(told[True], told[False], strict=True)]
    print(f"first token, chosen by beginning to any replica: {statistics.median(ratios):.2f}")
    return int(statistics.median(ratios) > 1)


if __name__ == "__main__":
    sys.exit(main())
