"""Coverage-guided fuzzing of one target: python -m tests.fuzz TARGET [libFuzzer options]

Needs atheris (`make fuzz` installs it). An input that raises what it should not, or costs too much, is
kept in a file `crash-*`.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["app", "nereid"]):
    from tests.fuzz.target import LIMIT
    from tests.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv[1]]

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], f"-max_len={LIMIT}", *sys.argv[2:], corpus], target.check)
        atheris.Fuzz()


main()
