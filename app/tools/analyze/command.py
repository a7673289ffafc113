"""The command `nereid analyze`: its flags, the course of a search, its files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from app.tools.analyze import report
from app.tools.analyze.choice import BETTER, compete, finalists, promising, ranked
from app.tools.analyze.queue_model import best_rate
from app.tools.analyze.space import Axes, Candidate, configured, has_threads, present, unsuited
from app.tools.analyze.trials import Measured, Trials
from app.tools.perf import slo
from app.tools.perf.bench import Bench
from app.tools.perf.command.flags import read_options
from app.tools.perf.options import Options, PerfError
from app.tools.perf.report import text
from app.tools.progress import Shown
from nereid_client import Server, ServerError

_ABOUT: Final = """Find the configuration with which a model of a running server answers most requests a
second within an objective: max_batch_size, delay, instances and threads. The server has to run with
--model-control-mode=explicit: each candidate is a load with a configuration, nothing of the repository is
written, and the model is loaded as it was in the end. Its clients meet the candidates meanwhile.

The flags of `nereid perf` that say what is asked (-u, -i, -H, --token-file, --shape, --input-data, -z, ...)
are those of this command too."""
_EXAMPLES: Final = """examples:
  nereid analyze -m simple --slo 'p99<20ms'
  nereid analyze -m simple --slo 'p99<20ms' --batches 1,4,16 --delays 0,1000 --instances 1,2

exit status: 0; 1 without a result; 2 for a wrong command line; 4 if nothing keeps the objective."""
_BATCHES: Final = (1, 2, 4, 8, 16)
_DELAYS_US: Final = (0, 500, 2000)
_STATE: Final = "analyze.json"


@dataclass
class Search:
    """What is known so far; it is kept in a file, by which a search that was interrupted goes on."""

    path: Path
    key: Mapping[str, Any]
    predicted: dict[Candidate, float]
    measured: dict[Candidate, Measured]
    rates: dict[Candidate, list[float]] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file."""
        found: dict[str, Mapping[Candidate, Any]] = {
            "predicted": self.predicted,
            "measured": self.measured,
            "rates": self.rates,
        }
        content = {"key": self.key, **{name: _listed(values) for name, values in found.items()}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(content, indent=1, default=asdict) + "\n")
        except OSError as error:
            raise PerfError(f"cannot write {self.path}: {error.strerror}") from None


def _listed(values: Mapping[Candidate, Any]) -> list[list[Any]]:
    return [[list(candidate), value] for candidate, value in values.items()]


def resumed(path: Path, key: Mapping[str, Any]) -> Search:
    """Return what an earlier search of the same kind has found; nothing if there was none."""
    try:
        content = json.loads(path.read_text())
        if content["key"] == json.loads(json.dumps(key)):
            predicted = {Candidate(*fields): rate for fields, rate in content["predicted"]}
            measured = {Candidate(*fields): Measured(**found) for fields, found in content["measured"]}
            rates = {Candidate(*fields): found for fields, found in content["rates"]}
            return Search(path, key, predicted, measured, rates)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return Search(path, key, {}, {})


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's own flags."""
    made = argparse.ArgumentParser(
        "nereid analyze",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("-m", "--model-name", metavar="NAME", required=True)
    made.add_argument("--slo", required=True, metavar="RULES", help="e.g. p99<20ms,errors<0.1%%")
    made.add_argument("--batches", type=_numbers, metavar="N,N", help="of max_batch_size (1,2,4,8,16)")
    made.add_argument("--delays", type=_numbers, metavar="US,US", help="of the queue (0,500,2000)")
    made.add_argument("--instances", type=_numbers, metavar="N,N", help="(1,2)")
    made.add_argument(
        "--threads", type=_numbers, metavar="N,N", help="of an instance (the backend's default)"
    )
    made.add_argument("--candidates", type=int, default=6, metavar="N", help="compared at most (6)")
    made.add_argument("--rounds", type=int, default=2, metavar="N", help="of the comparison (2)")
    made.add_argument("--output", type=Path, metavar="DIR", help="(analyze-NAME)")
    made.add_argument("--keep", action="store_true", help="leave the best configuration loaded")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers: give e.g. 1,4,16") from None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    console = text.console(stderr=True)
    given, rest = parser().parse_known_args(argv)
    try:
        options, _ = read_options(["-m", given.model_name, *rest])
        rules = slo.read_rules(given.slo)
    except PerfError as error:
        console.print(f"nereid analyze: {error}", markup=False)
        return 2
    address = options.address
    try:
        with (
            Server(address.url, headers=options.headers, tls=address.tls, retry=False) as server,
            Shown(console, options.model) as shown,
        ):
            return _analyzed(given, options, rules, server, shown)
    except ServerError as error:
        console.print(f"nereid analyze: {address.url}: {error.message}", markup=False)
        return 1
    except PerfError as error:
        console.print(f"nereid analyze: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on with what has been measured")
        return 130


def _analyzed(
    given: argparse.Namespace, options: Options, rules: Sequence[slo.Rule], server: Server, shown: Shown
) -> int:
    trials = Trials(server, options, rules, shown)
    if why := unsuited(trials.config):
        raise PerfError(f"'{options.model}' cannot be analyzed: {why}")
    axes, now = _axes(given, trials.config), present(trials.config)
    key = {"model": options.model, "url": options.address.url, "slo": given.slo, "axes": axes, "config": now}
    output = given.output or Path(f"analyze-{options.model}")
    search = resumed(output / _STATE, key)
    search.save()  # or it cannot, which is told before the search
    try:
        best, ratios = _searched(given, options, rules, trials, axes, now, search)
        if given.keep and best is not None:
            trials.apply(best)
    finally:
        if not given.keep:
            trials.restore()
    if best is None:
        print(f"nothing keeps {given.slo}")
        return 4
    _written(given, output, trials.config, search, now, best, ratios)
    return 0


def _axes(given: argparse.Namespace, config: Mapping[str, Any]) -> Axes:
    """Return what is searched: what is asked for, as far as the model has it.

    Raises:
        PerfError: threads of a backend that has no parameter for them.
    """
    batched = int(config.get("max_batch_size", 0)) > 0
    if given.threads and not has_threads(config):
        raise PerfError(f"--threads: the backend '{config.get('backend')}' has no parameter for them")
    return Axes(
        (given.batches or _BATCHES) if batched else (0,),
        (given.delays if given.delays is not None else _DELAYS_US) if batched else (0,),
        given.instances or (1, 2),
        given.threads or (0,),
    )


def _searched(
    given: argparse.Namespace,
    options: Options,
    rules: Sequence[slo.Rule],
    trials: Trials,
    axes: Axes,
    now: Candidate,
    search: Search,
) -> tuple[Candidate | None, list[float]]:
    """Predict, measure, confirm; return the best candidate and its ratios to the present configuration."""
    if not search.predicted:
        limits = {rule.name: rule.limit for rule in rules if rule.name != "errors"}
        costs = trials.costs(axes)
        own = axes._replace(batches=[b for b in axes.batches if b <= max(costs.seconds[axes.threads[0]])])
        known = [now] if now.threads in costs.seconds else []
        search.predicted.update({c: best_rate(c, costs, limits) for c in [*own.candidates(), *known]})
        search.save()
    with Bench(options, trials.progress) as bench:
        if not search.rates:
            search.rates = _compared(given, bench, trials, search, now)
            search.save()
        best = _best(bench, trials, search)
    if best is None or best == now:
        return best, []
    return best, [
        one / other for one, other in zip(search.rates[best], search.rates[now], strict=True) if other
    ]


def _compared(
    given: argparse.Namespace, bench: Bench, trials: Trials, search: Search, now: Candidate
) -> dict[Candidate, list[float]]:
    """Measure the promising candidates against each other and the present one, by short closed loops."""
    chosen = promising(search.predicted, given.candidates)
    in_flight = trials.in_flight(max(search.predicted.values()))
    return compete(
        chosen, now, max(given.rounds, 1), lambda candidate: trials.turn(bench, candidate, in_flight)
    )


def _best(bench: Bench, trials: Trials, search: Search) -> Candidate | None:
    """Measure the finalists in full, each against the best one before; return the best one.

    If none of them keeps the objective, the others are measured until one does.
    """
    best: Candidate | None = None
    first = finalists(search.rates)
    for candidate in dict.fromkeys((*first, *ranked(search.rates, search.rates))):
        if best is not None and candidate not in first:
            break
        least = search.measured[best].rate if best is not None else 0.0
        if candidate not in search.measured:
            found = trials.rate(bench, candidate, median(search.rates[candidate]), least / BETTER)
            search.measured[candidate] = found
            search.save()
        if search.measured[candidate].rate > least and not search.measured[candidate].below:
            best = candidate
    return best


def _written(
    given: argparse.Namespace,
    output: Path,
    config: Mapping[str, Any],
    search: Search,
    now: Candidate,
    best: Candidate,
    ratios: Sequence[float],
) -> None:
    """Write the configuration and the page, and print the table."""
    search.save()
    found = search.measured[best]
    sentences = [f"{found.rate:.4g} answers a second keep {given.slo}: {best}.", _beside(now, best, ratios)]
    made = configured(config, best)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    pbtxt = report.pbtxt(made, [f"Measured by nereid analyze, {when}.", *sentences])
    marks = {now: "present", best: "best"} if now != best else {best: "best, present"}
    lines = report.rows(search.predicted, search.measured, marks)
    (output / "config.pbtxt").write_text(pbtxt)
    title = f"{given.model_name}: configurations within {given.slo}"
    (output / "report.html").write_text(report.page(title, sentences, lines, search.measured, pbtxt))
    if given.json:
        fields = best._asdict()
        document = {"best": fields, "rate": found.rate, "present": now._asdict(), "ratios": list(ratios)}
        json.dump(
            {**document, "config": made, "measured": _listed(search.measured)}, sys.stdout, default=asdict
        )
        print()
        return
    console = text.console()
    console.print(report.printed(lines))
    for sentence in (*sentences, f"wrote {output}/config.pbtxt, report.html and {_STATE}"):
        console.print(sentence, markup=False)


def _beside(now: Candidate, best: Candidate, ratios: Sequence[float]) -> str:
    if now == best:
        return "That is the present configuration."
    if not ratios or not min(ratios):
        return f"It was not compared with the present configuration: {now}."
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return (
        f"With as many requests in flight it answers {median(ratios):.2f} times ({spread}) as much as the "
        f"present configuration, in turn: {now}."
    )
