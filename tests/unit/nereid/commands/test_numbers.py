"""Numbers on command lines: what is none, or none that makes sense, is refused before anything is done."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from nereid.commands.table import COMMANDS
from nereid_client.tools import arguments

ROOT: Final = Path(__file__).parents[4]
SOURCES: Final = ("client/nereid_client/tools", "nereid/commands", "nereid/offline", "nereid/optimise")
READERS: Final = {
    *("count", "positive", "counts", "port", "above_zero", "from_zero"),
    *("seconds", "percent", "share", "percentile"),
}
"""The functions of `arguments` that read numbers."""
WRONG: Final = ("nan", "inf", "-inf", "-1", "1e999", "x", "")
PERF: Final = (
    *("--search-time", "--num-of-sequences", "--sequence-length", "--latency-threshold", "--processes"),
    *("--connections", "--random-seed", "--batch-size", "--string-length", "--tolerance"),
    *("--measurement-interval", "--measurement-request-count", "--stability-percentage", "--max-trials"),
    *("--percentile", "--duration", "--request-count", "--warmup", "--timeout", "--threshold"),
)
TABLE: Final[Mapping[tuple[str, ...], Sequence[str]]] = {
    ("analyze", "-m", "m", "--slo", "p99<1ms"): (
        *("--batches", "--delays", "--instances", "--threads", "--candidates", "--rounds"),
        *PERF,
    ),
    ("batch",): ("--classes", "--batch-size", "--block-rows", "--actors", "--gpus"),
    ("console",): ("--port", "--parent"),
    ("drift",): ("--version", "--pid"),
    ("drift", "reference"): ("--version", "--rows", "--pid"),
    ("feedback",): ("--skip", "--timeout"),
    ("optimise",): (
        *("--version", "--margin", "--confidence", "--gain", "--rows", "--calibration", "--max-seconds"),
        *("--max-memory", "--keep"),
    ),
    ("perf", "-m", "m"): (*PERF, "--sequence-id-range"),
    ("plan", "-m", "m", "--slo", "p99<1ms"): ("--times", "--rate", "--replicas", "--per-node", *PERF),
    ("replay",): (
        *("--rows", "--noise", "--threshold", "--speed", "--in-flight", "--processes", "--connections"),
        *("--timeout", "--max-mb", "--max-seconds"),
    ),
    ("rollout", "start"): ("--candidate", "--weight", "--pid"),
    ("rollout", "rollback"): ("--to",),
    ("rollout", "forget"): ("--version",),
    ("status",): ("--pid",),
    ("tape", "show"): ("--last",),
    ("token", "new"): ("--concurrency",),
}
"""The flags that take a number, by the command line before them."""


@pytest.mark.parametrize(
    ("words", "flag"), [(words, flag) for words, flags in TABLE.items() for flag in flags]
)
def test_flag_refuses_what_is_no_number_for_it(
    words: Sequence[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in WRONG:
        with pytest.raises(SystemExit) as ended:
            COMMANDS[words[0]].run([*words[1:], f"{flag}={value}"], lambda argv: None)
        said = capsys.readouterr().err
        assert ended.value.code == 2 and f"{flag}: " in said and f"'{value}'" in said, said


@pytest.mark.parametrize("flag", ["--rate", "--concurrency"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1,nan", "1,inf", "1:inf:1", "nan:2:1", "1:2:nan"])
def test_loads_of_perf_are_numbers(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS["perf"].run(["-m", "m", f"{flag}={value}"], lambda argv: None) == 2
    assert f"'{value}' is no load" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["p101<1ms", "p99<nanms", "p99<-1ms", "errors<inf%"])
@pytest.mark.parametrize("command", ["perf", "plan", "analyze"])
def test_objectives_have_numbers(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "m", f"--slo={value}", *(["--rate=1"] if command == "plan" else [])]
    assert COMMANDS[command].run(words, lambda argv: None) == 2
    assert f"cannot read '{value}'" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_rows_are_compared_with_numbers(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", "tape", "--where", f"latency_ms>{value}"]
    assert COMMANDS["tape"].run(words, lambda argv: None) == 2
    assert f"not with '{value}'" in capsys.readouterr().err


def test_numbers_are_read() -> None:
    assert (arguments.count("0"), arguments.positive("7"), arguments.port("65535")) == (0, 7, 65535)
    assert arguments.counts("4, 1,4") == (1, 4)
    assert (arguments.above_zero("1e-3"), arguments.from_zero("0"), arguments.seconds("0.5")) == (
        0.001,
        0,
        0.5,
    )
    assert (arguments.percent("101"), arguments.share("0.5"), arguments.percentile("100")) == (101, 0.5, 100)


@pytest.mark.parametrize("path", sorted(p for s in SOURCES for p in (ROOT / s).rglob("*.py")), ids=str)
def test_every_flag_with_a_number_is_in_the_table(path: Path) -> None:
    known = {flag for flags in TABLE.values() for flag in flags}
    for names, reader in _typed(path):
        assert reader not in ("int", "float"), f"{names}: take one of tools/arguments.py"
        assert reader not in READERS or known.intersection(names), f"{names}: not in the table of this test"


def _typed(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the flags of a module, with the names of the functions that read their values."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            readers = [
                each.value.id
                for each in node.keywords
                if each.arg == "type" and isinstance(each.value, ast.Name)
            ]
            flags = [name for name in names if isinstance(name, str) and name.startswith("--")]
            if flags and readers:
                yield flags, readers[0]
