"""So many changed seeds through targets: python -m tests.fuzz.many [TARGET ...] [--inputs 10000000]

It needs no atheris and instruments nothing: 1,000 to 60,000 inputs a second, by the target. The default
targets compare what C reads with what Python does. Each input depends on the number of the run and its own
alone; one that fails is printed and kept in a file `crash-TARGET-NUMBER`, and after ten the target ends.
"""

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutation import mutate, splice
from tests.fuzz.targets import TARGETS

READ_BY_C = (
    *("http2_headers", "http2_connections", "http2_data", "grpc_infer", "http_known", "json_read"),
    *("json_written", "compiled_messages", "channel_ends"),
)
MOST_FAILURES = 10
_REPORT_S = 10.0


def input_of(name: str, run: int, number: int) -> bytes:
    """Return an input of a run."""
    chance = random.Random(f"{name} {run} {number}")
    return mutate(splice(TARGETS[name].seeds, chance), chance)


def fails(name: str, data: bytes) -> str:
    """Return the traceback of what an input raises that it should not; "" if there is nothing."""
    target = TARGETS[name]
    try:
        target.run(data)
    except target.errors:
        pass
    except Exception:
        return traceback.format_exc()
    return ""


def fuzz(name: str, inputs: int, run: int, folder: Path) -> int:
    """Run a target on so many inputs; print how far it is, and return the number of failures."""
    failures, began = 0, time.monotonic()
    reported = began
    for number in range(inputs):
        data = input_of(name, run, number)
        if text := fails(name, data):
            failures += 1
            (folder / f"crash-{name}-{number}").write_bytes(data)
            print(f"{name}: input {number} of run {run}: {data!r}\n{text}", flush=True)
            if failures == MOST_FAILURES:
                break
        now = time.monotonic()
        if now - reported > _REPORT_S or number == inputs - 1:
            reported = now
            rate = (number + 1) / (now - began)
            print(f"{name}: {number + 1:,} of {inputs:,}, {failures} failed, {rate:,.0f}/s", flush=True)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--inputs", type=int, default=10_000_000, help="of all targets together")
    parser.add_argument("--run", type=int, default=1, help="another number gives other inputs")
    parser.add_argument("--keep", type=Path, default=Path(), metavar="DIR", help="where failing inputs go")
    options = parser.parse_args()
    targets = options.targets or READ_BY_C
    if unknown := [name for name in targets if name not in TARGETS]:
        parser.error(f"no such target: {' '.join(unknown)}")
    share = -(-options.inputs // len(targets))
    failed = sum(fuzz(name, share, options.run, options.keep) for name in targets)
    sys.exit(f"{failed} inputs failed" if failed else 0)


if __name__ == "__main__":
    main()
