"""The command `nereid plan`: its flags, and what it prints."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from nereid_client import Server, ServerError
from nereid_client.tape.rows import TapeError
from nereid_client.tools.analyze.space import unsuited
from nereid_client.tools.arguments import above_zero, command_parser, positive
from nereid_client.tools.digits import all_digits, four_digits
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.command.flags import read_options
from nereid_client.tools.perf.machine import busy_because, used_by_others
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.report import text
from nereid_client.tools.plan.arrivals import Traffic, by_chance, recorded
from nereid_client.tools.plan.calibration import Calibration, calibrate
from nereid_client.tools.plan.choice import Outcome, outcomes
from nereid_client.tools.progress import Shown
from nereid_client.tools.tapes import opened

_ABOUT: Final = """Tell how many replicas of a model keep an objective at more requests than it has today.

Executions are measured on the running server, as it is configured, and so are what it answers at most and its
latency at 80 % of that: by how much the simulation is off there is printed and applied. Use a server, or a
time, that nobody else uses: it is asked for as much as it can answer, for half a minute.

The flags of `nereid perf` that say what is asked (-u, -i, -b, -H, --token-file, --shape, --input-data, ...)
are those of this command too."""
_EXAMPLES: Final = """examples:
  nereid plan -m simple --slo 'p99<20ms' --rate 50 --times 10
  nereid plan -m simple --slo 'p99<20ms' --tape /var/lib/nereid/tape --times 10

exit status: 0; 1 without a result; 2 for a wrong command line; 4 if no number of replicas is enough."""
_MANY: Final = 100_000


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own flags."""
    made = command_parser("nereid plan", _ABOUT, _EXAMPLES, allow_abbrev=False)
    made.add_argument("-m", "--model-name", metavar="NAME", required=True)
    made.add_argument("--slo", required=True, metavar="RULES", help="e.g. p99<20ms")
    made.add_argument("--times", type=above_zero, default=1.0, metavar="N", help="of today's requests (1)")
    made.add_argument("--rate", type=above_zero, metavar="R", help="today's requests a second")
    made.add_argument("--tape", type=Path, metavar="DIR", help="has today's requests")
    made.add_argument(
        "--replicas", type=positive, default=1, metavar="N", help="that serve the model now (1)"
    )
    made.add_argument(
        "--per-node", type=positive, metavar="N", help="replicas of a node (as many as serve now)"
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    console = text.console(stderr=True)
    given, rest = parser().parse_known_args(argv)
    try:
        options, _ = read_options(["-m", given.model_name, *rest])
        rules = slo.read_rules(given.slo)
        if (given.rate is None) == (given.tape is None):
            raise PerfError("give either --rate, today's requests a second, or --tape, which has them")
    except PerfError as error:
        console.print(f"nereid plan: {error}", markup=False)
        return 2
    address = options.address
    try:
        with (
            Server(address.url, headers=options.headers, tls=address.tls, retry=False) as server,
            Shown(console, options.model) as shown,
        ):
            return _Plan(given, options, rules).run(server, shown)
    except ServerError as error:
        console.print(f"nereid plan: {address.url}: {error.message}", markup=False)
    except (PerfError, TapeError, ValueError) as error:
        console.print(f"nereid plan: {error}", markup=False)
    return 1


class _Plan:
    def __init__(self, given: argparse.Namespace, options: Options, rules: Sequence[slo.Rule]) -> None:
        self._given, self._options, self._rules = given, options, rules

    def run(self, server: Server, progress: Shown) -> int:
        """Measure, simulate, print; return the exit status."""
        given = self._given
        config = server.model(self._options.model).described()[1]
        why = "it is an ensemble: plan its steps" if config.get("ensemble_scheduling") else unsuited(config)
        if why:
            raise PerfError(f"'{self._options.model}' cannot be planned: {why}")
        traffic = self._traffic(batched=int(config.get("max_batch_size", 0)) > 0)
        used = used_by_others()
        most = int(max(traffic.rows, default=1))
        found = calibrate(config, self._options, given.replicas, most, progress)
        rate = given.times * traffic.rate
        tried = list(outcomes(found.replica, traffic, rate, self._rules, found.later))
        enough = tried[-1] if tried and tried[-1].enough else None
        sentences = [*self._measured(found), self._verdict(enough, traffic, rate), *_doubts(found, used)]
        if given.json:
            print(json.dumps(self._document(found, tried, enough, rate, sentences)))
        else:
            console = text.console()
            console.print(_table(tried))
            for sentence in sentences:
                console.print(sentence, markup=False)
        return 4 if enough is None else 0

    def _traffic(self, batched: bool) -> Traffic:
        if self._given.tape is None:
            return by_chance(self._given.rate, _MANY, self._options.batch)
        with opened(self._given.tape) as tape:
            return recorded(tape.rows(models=[self._options.model]), batched)

    def _measured(self, found: Calibration) -> list[str]:
        answered, said = map(four_digits, (found.saturation, found.saturation * found.slower))
        p99, simulated = map(four_digits, (found.p99_ms, found.simulated_ms))
        return [
            f"{_counted(self._given.replicas)} answered {answered}/s at most, {said} by what "
            f"executions take: the factor {found.slower:.2f} is applied.",
            f"At 80 % of that p99 was {p99} ms, {simulated} simulated: executions "
            f"are taken to be {found.longer:.2f} times as long.",
        ]

    def _verdict(self, enough: Outcome | None, traffic: Traffic, rate: float) -> str:
        given = self._given
        asked = (
            f"{four_digits(rate)} requests a second, {all_digits(given.times)} times the "
            f"{four_digits(traffic.rate)} of today"
        )
        if enough is None:
            return f"No number of replicas keeps {given.slo} at {asked}: single requests take too long."
        nodes = math.ceil(enough.replicas / (given.per_node or given.replicas))
        return f"{_counted(enough.replicas)} on {nodes} node(s) keep {given.slo} at {asked}."

    def _document(
        self,
        found: Calibration,
        tried: Sequence[Outcome],
        enough: Outcome | None,
        rate: float,
        sentences: Sequence[str],
    ) -> dict[str, object]:
        return {
            "rate": rate,
            "replicas": enough.replicas if enough is not None else None,
            "saturation": found.saturation,
            "factors": {"saturation": found.slower, "executions": found.longer, "p99": found.later},
            "outcomes": [each._asdict() for each in tried],
            "notes": list(sentences),
        }


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _doubts(found: Calibration, used: float) -> list[str]:
    busy = busy_because(used)
    sentences = [f"{busy[0].upper()}{busy[1:]}."] if busy else []
    if found.later != 1:
        sentences.append(
            "The simulation does not know what made p99 so: pauses of the machine, or other work on it. "
            f"The factor {found.later:.2f} is applied to latencies."
        )
    return [*sentences, *(f"Doubtful: {each}." for each in found.doubts)]


def _table(tried: Sequence[Outcome]) -> Table:
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("replicas", "load", "p50 ms", "p99 ms", "90 % of draws", "keep it"):
        made.add_column(name, justify="right", no_wrap=True)
    for each in tried:
        low, high = each.interval_ms
        figures = (f"{each.p50_ms:.1f}", f"{each.p99_ms:.1f}", f"{low:.1f} to {high:.1f}")
        made.add_row(
            str(each.replicas),
            f"{each.load:.0%}",
            *(figures if math.isfinite(each.p99_ms) else ("", "too much", "")),
            f"{each.kept:.0%}",
        )
    return made
