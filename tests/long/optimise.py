"""Cheaper forms of the two large example models: who wins, who is refused, who is ended by its limits.

    python -m tests.long.optimise                    both models, tapes of 3,200 rows: 20 minutes
    python -m tests.long.optimise --rows 400 --only limits

`classifier` is EfficientNet-Lite0 on crops of photographs, `reader` PP-OCR's recognition on lines of text.
A form wins by 1.5 times on one thread and 1.3 times on all processors, at an agreement of 99% beyond the
margin; forms in 8 bits for all layers are refused with their figures, and the classifier's model and
configuration stay as they were. `limits`: a candidate that hangs, and one that takes 20 GiB. Needs
scikit-image for its photographs, 3 GB of disk, and a processor with bfloat16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from nereid.optimise.facts import machine
from nereid.optimise.search import Search
from nereid.optimise.trials.bounded import Limits
from nereid.optimise.trials.candidates import Candidate
from nereid.optimise.trials.forms import read_source
from nereid.optimise.trials.rows import choose
from nereid.optimise.trials.verdict import Wanted
from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tape.reader import Tape
from tests.long.optimise_rows import CLASSIFIER, READER, crops, lines, record, repository

MODELS: Final = {"classifier": CLASSIFIER, "reader": READER}
ONE_THREAD, ALL_PROCESSORS = 1.5, 1.3
RULES: Final = 'outputs: {"*": RULE}\nmargin: 0.05\n'
"""Of the classifier only the class counts, of the reader the text."""
PLANTED: Final = "tests.unit.nereid.optimise.networks"


def optimised(directory: Path, name: str, rows: int) -> dict[str, Any]:
    """Record a tape of a model, and run the command on it; return its document."""
    model = MODELS[name]
    models = repository(directory, model)
    record(models, directory / "tape", model, crops(rows) if name == "classifier" else lines(rows))
    (directory / "rules.yaml").write_text(RULES.replace("RULE", "argmax" if name == "classifier" else "ctc"))
    command = [sys.executable, "-m", "nereid", "optimise", model, "--repository", str(models), "--json"]
    command += ["--tape", str(directory / "tape"), "--rules", str(directory / "rules.yaml")]
    command += ["--keep", "agreement>=0.99", "--slo", "p99<200ms", "--output", str(directory / f"of-{name}")]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=3 * 3600, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judged(name: str, found: dict[str, Any]) -> list[str]:
    """Print what was found; return what is not as it is to be."""
    faults = []
    by_name = {each["name"]: each for each in found["candidates"]}
    for each in by_name.values():
        print(f"  {each['name']}: {each['status']}: {each['why']}")
    for form, rate, ratio in found["served"]:
        print(f"  {form}: {rate}/s, {ratio}")
    best = by_name.get(found["best"] or "")
    if best is None or best["seen"]["ratio"] < ONE_THREAD:
        faults.append(f"{name}: no form wins by {ONE_THREAD} on one thread")
    ratios = [float(ratio.split()[0]) for form, _, ratio in found["served"] if not form.startswith("present")]
    if max(ratios, default=0.0) < ALL_PROCESSORS:
        faults.append(f"{name}: no form wins by {ALL_PROCESSORS} on all processors")
    if by_name["int8"]["status"] != "refused" or not by_name["int8"]["seen"]["bad"]:
        faults.append(f"{name}: 8 bits for all layers were not refused by its answers")
    return faults


def limited(directory: Path) -> list[str]:
    """Run a candidate that hangs, and one that takes 20 GiB; return what is not as it is to be."""
    source = read_source(repository(directory, CLASSIFIER), CLASSIFIER)
    tape = directory / "tape"
    chosen = choose(Tape(tape), CLASSIFIER, "1", None, 16, 100)
    faults = []
    for name, limits, words in (
        ("hangs", Limits(20.0, 8 << 30), "its limit of 20 s"),
        ("greedy", Limits(600.0, 2 << 30), "its limit"),
    ):
        search = Search(
            source, tape, chosen, ComparisonRules(), Wanted(), machine(), limits, directory, lambda *_: None
        )
        planted = Candidate(name, "", "onnxruntime", f"{PLANTED}:{name}", file="model.onnx")
        found = search.outcome(planted)
        print(f"  {name}: {found.status}: {found.why}, {found.peak_mb:.0f} MB in {found.seconds:.0f} s")
        if found.status != "failed" or words not in found.why or found.peak_mb > 4096:
            faults.append(f"limits: {name} was not ended by its limit: {found.why}")
    return faults


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3200, metavar="N", help="of each tape (3200)")
    parser.add_argument(
        "--only", choices=(*MODELS, "limits"), metavar="PART", help="classifier, reader, limits"
    )
    given = parser.parse_args()
    faults = []
    with tempfile.TemporaryDirectory(prefix="nereid-optimise-") as temporary:
        for name in MODELS:
            if given.only in (None, name):
                print(f"{name}:", flush=True)
                faults += judged(name, optimised(Path(temporary) / name, name, given.rows))
        if given.only in (None, "limits"):
            print("limits:", flush=True)
            directory = Path(temporary) / "limits"
            models = repository(directory, CLASSIFIER)
            record(models, directory / "tape", CLASSIFIER, crops(64))
            faults += limited(directory)
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
