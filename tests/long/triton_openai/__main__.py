"""Runs Triton's tests of its front for OpenAI's clients (`python/openai/tests` of its public repository).

`python -m tests.long.triton_openai CHECKOUT [FILE ...]`; prints a table, and ends with status 1 if a test
fails that is not in KNOWN. Nothing of Triton's is changed: `plugin.py` says how they come to our server, and
`adapter.py` what differs. NEREID_MODULE=nereid runs each server on Ray.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.backends.packaged import write_models
from tests.server import ROOT

FILES: Final = (
    *("test_observability", "test_model_management", "test_request_size", "test_openai_restricted_apis"),
    *("test_chat_completions", "test_completions", "test_openai_client", "test_tool_calling"),
    *("test_embeddings", "test_lora"),
)
_DIALOGUES: Final = ("test_model_management", "test_openai_client", "test_tool_calling")
"""Files whose tests expect certain answers."""
_MODEL: Final = "mimic"
_LOOPS: Final = (  # clients of a class keep their connections
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"),
    *("-o", "asyncio_default_test_loop_scope=session"),
)
_TEMPLATE: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
KNOWN: Final = {
    "n=2 is answered here": ("multiple_choices",),
    "logit_bias is answered here": ("sampling_parameters[logit_bias",),
    "completions have up to 20 logprobs here": (
        "completions_logprobs_validation",
        "completion_logprobs_exceeds",
    ),
    "OpenAI ends required calls by tool_calls, Triton by stop": ("required_tool_choice",),
    "Triton's own code, without a server": ("TestContentLengthValidation", "test_startup_log_does_not"),
    "a name that is a path is refused before anything is read": ("load_invalid_model_name_error",),
    "a model's own template serves here": ("completions_no_tokenizer",),
    "downloads": ("custom_tokenizer", "invalid_chat_tokenizer"),
}
"""What may fail, by parts of names of tests."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests; return 1 if one has failed that may not."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.triton_openai", description=__doc__)
    parser.add_argument("server", type=Path, help="a checkout of github.com/triton-inference-server/server")
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE", help="names of files of its tests")
    parser.add_argument("--work", type=Path, default=Path("/tmp/nereid-openai"), help="for a copy and logs")
    parser.add_argument("--llm", action="store_true", help="models of the backend llm, which is installed")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="as of pytest")
    given = parser.parse_args(argv)
    copy = stage(given.server / "python" / "openai", given.work)
    if given.llm:
        write_models("llm", Path(__file__).with_name("write_models.py"), given.work)
    failed = 0
    print(f"{'file':32} {'passed':>6} {'known':>6} {'failed':>6} {'skipped':>7}")
    for name in given.files:
        outcomes = dict(run(copy, given.work, name, given.k))
        counts = Counter(outcomes.values())
        columns = [counts[each] for each in ("passed", "known", "failed")]
        print(f"{name:32} {columns[0]:6} {columns[1]:6} {columns[2]:6} {counts['skipped']:7}", flush=True)
        for test, outcome in outcomes.items():
            if outcome in ("known", "failed"):
                print(f"  {outcome:7} {test} {reason(test)}")
        failed |= bool(counts["failed"] or not outcomes)
    return int(failed)


def stage(source: Path, work: Path) -> Path:
    """Copy Triton's front and tests, and write models and a tokenizer for them; return where the copy is."""
    copy = work / "openai"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, copy)
    shutil.copytree(ROOT / "tests" / "long" / "models" / "vllm_mimic", work / "models" / _MODEL)
    tokenizer = work / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE}))
    embeddings = copy / "tests" / "vllm_embedding_models"
    shutil.rmtree(embeddings, ignore_errors=True)
    shutil.copytree(ROOT / "examples" / "text" / "models", embeddings)
    return copy


def run(copy: Path, work: Path, name: str, expression: str) -> Iterator[tuple[str, str]]:
    """Run a file of tests; yield the name of each test, and its outcome."""
    report, log = work / f"{name}.xml", work / f"{name}.log"
    words = ["-p", "plugin", "-p", "no:cacheprovider", "--tb=native", *_LOOPS, f"--junitxml={report}"]
    path = os.pathsep.join((str(Path(__file__).parent), str(copy), str(copy / "openai_frontend")))
    with log.open("wb") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *words, "-k", expression, f"tests/{name}.py"],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": path, **environment(work, name)},
            stdout=output,
            stderr=output,
            check=False,
        )
    for case in ET.parse(report).iter("testcase"):
        test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            yield test, "known" if reason(test) else "failed"
        else:
            yield test, "skipped" if "skipped" in kinds else "passed"


def environment(work: Path, name: str) -> Mapping[str, str]:
    """Return what Triton's `conftest.py` reads, for a file of tests."""
    written = work / ("dialogues" if name in _DIALOGUES else "any")
    models, tokenizer = (
        (written, work / "words") if written.exists() else (work / "models", work / "tokenizer")
    )
    return {
        "TEST_BACKEND": "vllm",
        "TEST_MODEL": _MODEL,
        "TEST_MODEL_REPOSITORY": str(models),
        "TEST_TOKENIZER": str(tokenizer),
        "TEST_ADAPTER": str(work / "adapter"),
    }


def reason(test: str) -> str:
    """Return why a test may fail; "" if it may not."""
    found = (why for why, parts in KNOWN.items() if any(part in test for part in parts))
    return next(found, "")


if __name__ == "__main__":
    sys.exit(main())
