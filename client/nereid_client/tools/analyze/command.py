"""The command `nereid analyze`: its flags, the course of a search, its files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from nereid_client import Server, ServerError
from nereid_client.tools.analyze.searches import analysis
from nereid_client.tools.arguments import command_parser, counts, positive
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.command.flags import read_options
from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.report import text
from nereid_client.tools.perf.signals import Signals
from nereid_client.tools.progress import Shown

_ABOUT: Final = """Find the configuration with which a model of a running server answers most requests a
second within an objective: max_batch_size, delay, instances and threads. The server has to run with
--model-control-mode=explicit: each candidate is a load with a configuration, nothing of the repository is
written, and the model is loaded as it was in the end. Its clients meet the candidates meanwhile. Of an
ensemble the steps are searched together, by what the ensemble answers.

The flags of `nereid perf` that say what is asked (-u, -i, -H, --token-file, --shape, --input-data, -z, ...)
are those of this command too."""
_EXAMPLES: Final = """examples:
  nereid analyze -m simple --slo 'p99<20ms'
  nereid analyze -m simple --slo 'p99<20ms' --batches 1,4,16 --delays 0,1000 --instances 1,2

exit status: 0; 1 without a result; 2 for a wrong command line; 4 if nothing keeps the objective; 130 or 143
when a signal ended it: what was measured is printed."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own flags."""
    made = command_parser("nereid analyze", _ABOUT, _EXAMPLES, allow_abbrev=False)
    made.add_argument("-m", "--model-name", metavar="NAME", required=True)
    made.add_argument("--slo", required=True, metavar="RULES", help="e.g. p99<20ms,errors<0.1%%")
    made.add_argument("--batches", type=counts, metavar="N,N", help="of max_batch_size (1,2,4,8,16)")
    made.add_argument("--delays", type=counts, metavar="US,US", help="of the queue (0,500,2000)")
    made.add_argument("--instances", type=counts, metavar="N,N", help="(1,2)")
    made.add_argument("--threads", type=counts, metavar="N,N", help="of an instance (the backend's default)")
    made.add_argument("--candidates", type=positive, default=6, metavar="N", help="compared at most (6)")
    made.add_argument("--rounds", type=positive, default=2, metavar="N", help="of the comparison (2)")
    made.add_argument("--output", type=Path, metavar="DIR", help="(analyze-NAME)")
    made.add_argument("--keep", action="store_true", help="leave the best configuration loaded")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(argv: Sequence[str], thread_parameters: Mapping[str, str] = {}) -> int:
    """Run the command; return its exit status.

    Args:
        argv: the arguments.
        thread_parameters: the parameters of models that say how many threads an instance computes with, by
            backend.
    """
    console = text.console(stderr=True)
    given, rest = parser().parse_known_args(argv)
    try:
        options, _ = read_options(["-m", given.model_name, *rest])
        rules = slo.read_rules(given.slo)
        options = replace(options, percentiles=tuple(slo.percentiles(rules)))
    except PerfError as error:
        console.print(f"nereid analyze: {error}", markup=False)
        return 2
    address = options.address
    signals = Signals()
    try:
        with (
            signals,
            Server(address.url, headers=options.headers, tls=address.tls, retry=False) as server,
            Shown(console, options.model) as shown,
        ):
            return analysis(given, options, rules, server, signals, shown, thread_parameters).run()
    except ServerError as error:
        console.print(f"nereid analyze: {address.url}: {error.message}", markup=False)
        return 1
    except PerfError as error:
        console.print(f"nereid analyze: {error}", markup=False)
        return 1
    except KeyboardInterrupt as stopped:
        console.print("interrupted; the same command goes on with what has been measured")
        return getattr(stopped, "status", 130)
