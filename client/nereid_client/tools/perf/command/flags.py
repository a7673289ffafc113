"""The command line of `nereid perf`: perf_analyzer's flags as its users know them, and our own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nereid_client import Tls
from nereid_client.tools.arguments import (
    above_zero,
    command_parser,
    count,
    from_zero,
    percent,
    percentile,
    positive,
    seconds,
)
from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf.generator.arrivals import DISTRIBUTIONS
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.options import Options, PerfError, read_address, read_levels, read_shape
from nereid_client.tools.perf.recorded import pauses

ABOUT: Final = """Measure a model of a running server, Nereid or Triton.

Requests begin at moments that are drawn before the run (--rate, an open loop), and a latency counts from
that moment: when the server stalls, every request of that time is late, as for real clients. --concurrency is
a closed loop, which begins a request when one is answered: it hides stalls, and shows what the server can do.
Without either the closed loop measures the capacity, and open loops go up to 90% of it."""

EXAMPLES: Final = """examples:
  nereid perf -m simple                                     # a curve of latency over load
  nereid perf -m simple --rate 100,200,400 --html report.html
  nereid perf -m simple --slo 'p99<20ms,errors<0.1%'        # the highest rate that keeps it
  nereid perf -m simple -i grpc --concurrency-range 1:16:5 -f report.csv
  nereid perf -m simple --rate 200 --json new.json --compare old.json

exit status: 0; 1 without a result or a verdict, or with wrong answers; 2 for a wrong command line; 3 if worse
than --compare; 4 if no load keeps --slo; 130 or 143 when a signal ended it: what was measured is printed."""

_IGNORED: Final = ("--async", "-a", "--sync", "-v", "--verbose")
_IGNORED_VALUES: Final = ("--max-threads", "--service-kind", "--client-backend")


def parser() -> argparse.ArgumentParser:
    made = command_parser("nereid perf", ABOUT, EXAMPLES, allow_abbrev=False)
    for add in (_add_target, _add_load, _add_data, _add_measurement, _add_output, add_tls):
        add(made)
    hidden = made.add_argument_group()
    hidden.add_argument(*_IGNORED, action="store_true", dest="ignored", help=argparse.SUPPRESS)
    hidden.add_argument(*_IGNORED_VALUES, dest="ignored", help=argparse.SUPPRESS)
    return made


def _add_target(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("what")
    group.add_argument("-m", "--model-name", metavar="NAME", required=True)
    group.add_argument("-x", "--model-version", metavar="N", default="")
    add_server(group)
    group.add_argument("--streaming", action="store_true", help="any number of responses a request")


def add_server(group: argparse._ArgumentGroup) -> None:
    """Add the flags that say which server is asked, and as whom."""
    group.add_argument("-u", "--url", default="localhost", help="HOST:PORT, https://.., grpc://...")
    group.add_argument("-i", "--protocol", type=str.lower, choices=("http", "grpc"), default="http")
    group.add_argument("-H", "--header", action="append", default=[], metavar="NAME:VALUE")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="with the token to send")


def _add_load(made: argparse.ArgumentParser) -> None:
    loads = made.add_argument_group("load")
    group = loads.add_mutually_exclusive_group()
    values = "5, 5,10,20 or START:END:STEP"
    group.add_argument("--rate", "--request-rate-range", metavar="R", help=f"requests a second: {values}")
    group.add_argument("--concurrency", "--concurrency-range", metavar="N", help=f"in flight: {values}")
    text = "pauses in us, a line each, or of the model's rows on a tape"
    group.add_argument("--request-intervals", type=Path, metavar="FILE|TAPE", help=text)
    loads.add_argument("--slo", default="", metavar="RULES", help="e.g. p99<20ms,errors<0.1%%")
    loads.add_argument(
        "--search-time", type=seconds, default=300, metavar="S", help="of --slo, at most (300)"
    )
    loads.add_argument("--request-distribution", choices=DISTRIBUTIONS, default="poisson")
    loads.add_argument("--num-of-sequences", type=positive, default=0, metavar="N", help="at a time")
    loads.add_argument("--sequence-length", type=positive, default=20, metavar="N", help="steps (20)")
    loads.add_argument("--sequence-id-range", type=_first, default="1", metavar="FIRST[:LAST]")
    loads.add_argument(
        "-l", "--latency-threshold", type=above_zero, metavar="MS", help="with --binary-search"
    )
    loads.add_argument("--binary-search", action="store_true", help="as --slo, by -l and --percentile")
    loads.add_argument("--processes", type=positive, default=1, metavar="N", help="generators (1)")
    loads.add_argument("--connections", type=positive, default=1024, metavar="N", help="at most (1024)")
    loads.add_argument("--random-seed", type=count, default=0, metavar="N")


def _add_data(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("data")
    group.add_argument("-b", "--batch-size", type=positive, default=1, metavar="N")
    group.add_argument("--shape", action="append", default=[], metavar="NAME:D,D")
    group.add_argument("--input-data", default="random", metavar="random|zero|FILE|DIRECTORY|TAPE")
    group.add_argument("-z", dest="input_data", action="store_const", const="zero", help="zeros")
    group.add_argument("--string-data", default="", metavar="TEXT")
    group.add_argument("--string-length", type=positive, default=128, metavar="N")
    group.add_argument("--shared-memory", choices=("none", "system", "cuda"), default="none")
    group.add_argument("--expect", default="", metavar="FILE|first", help="check answers")
    group.add_argument("--tolerance", type=from_zero, default=1e-5, help="of that check, relative (1e-5)")


def _add_measurement(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("measurement")
    group.add_argument("-p", "--measurement-interval", type=positive, default=5000, metavar="MS")
    group.add_argument(
        "--measurement-mode", choices=("time_windows", "count_windows"), default="time_windows"
    )
    group.add_argument(
        "--measurement-request-count", type=positive, default=50, metavar="N", help="of a count window (50)"
    )
    group.add_argument("-s", "--stability-percentage", type=percent, default=10, metavar="PERCENT")
    group.add_argument("-r", "--max-trials", type=positive, default=10, metavar="N", help="windows (10)")
    group.add_argument(
        "--percentile", type=percentile, default=0, metavar="N", help="for stability (the mean)"
    )
    group.add_argument(
        "--duration", type=from_zero, default=0, metavar="S", help="of a level, whatever happens"
    )
    group.add_argument("--request-count", type=positive, default=0, metavar="N", help="of a level")
    group.add_argument("--warmup", type=from_zero, default=1.0, metavar="S", help="not measured (1)")
    group.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help="of a request (30)")


def _add_output(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("output")
    group.add_argument("--json", nargs="?", const="-", metavar="FILE", help="on standard output without FILE")
    group.add_argument("-f", "--csv", type=Path, metavar="FILE", help="in perf_analyzer's columns")
    group.add_argument(
        "--profile-export-file", type=Path, metavar="FILE", help="all requests, in perf_analyzer's JSON"
    )
    group.add_argument("--verbose-csv", action="store_true", help="with more columns")
    group.add_argument("--html", type=Path, metavar="FILE", help="one page with plots")
    group.add_argument("--compare", type=Path, metavar="OLD.json", help="what --json wrote earlier")
    group.add_argument("--threshold", type=percent, default=10, metavar="PERCENT", help="of --compare (10)")


def add_tls(made: argparse.ArgumentParser) -> None:
    """Add the flags of connections by TLS."""
    group = made.add_argument_group("TLS")
    ca = ("--ssl-https-ca-certificates-file", "--ssl-grpc-root-certifications-file")
    key = ("--ssl-https-private-key-file", "--ssl-grpc-private-key-file")
    own = ("--ssl-https-client-certificate-file", "--ssl-grpc-certificate-chain-file")
    group.add_argument(*ca, type=Path, dest="ca", metavar="FILE")
    group.add_argument(*key, type=Path, dest="key", metavar="FILE")
    group.add_argument(*own, type=Path, dest="certificate", metavar="FILE")
    group.add_argument("--ssl-grpc-use-ssl", action="store_true", dest="use_tls")


def _first(text: str) -> int:
    """Read the first of a range of sequence ids; the last says nothing that Nereid needs."""
    first, colon, last = text.partition(":")
    if colon:
        positive(last)
    return positive(first)


def read_options(argv: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    """Return the run that a command line asks for, and the line itself for what is printed.

    Raises:
        PerfError: a value that cannot be used.
        SystemExit: as argparse does.
    """
    given = parser().parse_args(argv)
    _check_outputs(given)
    return (
        Options(
            model=given.model_name,
            address=read_address(given.url, given.protocol, tls_of(given)),
            version=given.model_version,
            headers=headers_of(given),
            levels=_levels(given),
            slo=_slo(given),
            distribution=given.request_distribution,
            intervals=given.request_intervals,
            batch=given.batch_size,
            streaming=given.streaming,
            data=given.input_data,
            shapes=dict(read_shape(text) for text in given.shape),
            string_data=given.string_data,
            string_length=given.string_length,
            shared_memory=given.shared_memory,
            sequences=given.num_of_sequences,
            sequence_length=given.sequence_length,
            first_sequence=given.sequence_id_range,
            expect=given.expect,
            tolerance=given.tolerance,
            search_s=given.search_time,
            seed=given.random_seed,
            **_measurement(given),
        ),
        given,
    )


def _measurement(given: argparse.Namespace) -> dict[str, Any]:
    """Return how each level is measured."""
    return {
        "window_s": given.measurement_interval / 1e3,
        "windows": given.max_trials,
        "stability": given.stability_percentage / 100,
        "duration_s": given.duration,
        "requests": given.request_count,
        "window_requests": _window_requests(given),
        "warmup_s": given.warmup,
        "percentile": given.percentile,
        "processes": given.processes,
        "connections": given.connections,
        "timeout_s": given.timeout,
    }


def _check_outputs(given: argparse.Namespace) -> None:
    """Find files that cannot be written before the run, not after it."""
    told = Path(given.json) if given.json not in (None, "-") else None
    for path in (told, given.csv, given.html, given.profile_export_file):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise PerfError(f"cannot write {path}: {'a directory' if path.is_dir() else 'no such directory'}")


def _levels(given: argparse.Namespace) -> Any:
    if given.request_intervals:
        return (_rate_of(given.request_intervals, given.model_name),)
    if given.rate:
        return read_levels("rate", given.rate)
    if given.concurrency:
        return read_levels("concurrency", given.concurrency)
    return ()


def _rate_of(path: Path, model: str) -> Level:
    try:
        return Level("rate", round(1e9 / float(pauses(path, model).mean()), 1))
    except (OSError, ValueError) as error:
        raise PerfError(f"--request-intervals: {error}") from None


def _window_requests(given: argparse.Namespace) -> int:
    return int(given.measurement_request_count) if given.measurement_mode == "count_windows" else 0


def _slo(given: argparse.Namespace) -> str:
    if given.binary_search:
        if not given.latency_threshold:
            raise PerfError("--binary-search needs the limit of the latency: give -l MS")
        name = f"p{given.percentile}" if given.percentile else "mean"
        return f"{name}<{all_digits(given.latency_threshold)}ms"
    return str(given.slo)


def tls_of(given: argparse.Namespace) -> Tls | None:
    """Return what the flags of TLS say; None without any."""
    tls = Tls(given.ca, given.certificate, given.key)
    return tls if given.use_tls or given.ca or given.certificate else None


def headers_of(given: argparse.Namespace) -> dict[str, str]:
    """Return the headers that -H and --token-file ask for.

    Raises:
        PerfError: one of them cannot be used.
    """
    headers = {}
    for text in given.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise PerfError(f"'{text}' is no header: give NAME:VALUE")
        headers[name.strip()] = value.strip()
    if given.token_file:
        try:
            headers["Authorization"] = f"Bearer {given.token_file.read_text().strip()}"
        except OSError as error:
            raise PerfError(f"--token-file: {given.token_file}: {error.strerror}") from None
    return headers
