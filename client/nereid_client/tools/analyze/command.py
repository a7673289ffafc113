"""The command `nereid analyze`: its flags, the course of a search, its files."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from nereid_client import Server, ServerError
from nereid_client.tools.analyze import report
from nereid_client.tools.analyze.choice import BETTER, compete, finalists, promising, ranked
from nereid_client.tools.analyze.queue_model import best_rate
from nereid_client.tools.analyze.space import Axes, Candidate, configured, present, unsuited
from nereid_client.tools.analyze.state import State, listed, resumed
from nereid_client.tools.analyze.trials import Measured, Trials
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Bench
from nereid_client.tools.perf.command.flags import read_options
from nereid_client.tools.perf.machine import busy_because, used_by_others
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.report import text
from nereid_client.tools.perf.signals import Signals, Stopped
from nereid_client.tools.progress import Shown

_ABOUT: Final = """Find the configuration with which a model of a running server answers most requests a
second within an objective: max_batch_size, delay, instances and threads. The server has to run with
--model-control-mode=explicit: each candidate is a load with a configuration, nothing of the repository is
written, and the model is loaded as it was in the end. Its clients meet the candidates meanwhile.

The flags of `nereid perf` that say what is asked (-u, -i, -H, --token-file, --shape, --input-data, -z, ...)
are those of this command too."""
_EXAMPLES: Final = """examples:
  nereid analyze -m simple --slo 'p99<20ms'
  nereid analyze -m simple --slo 'p99<20ms' --batches 1,4,16 --delays 0,1000 --instances 1,2

exit status: 0; 1 without a result; 2 for a wrong command line; 4 if nothing keeps the objective; 130 or 143
when a signal ended it: what was measured is printed."""
_BATCHES: Final = (1, 2, 4, 8, 16)
_DELAYS_US: Final = (0, 500, 2000)
_STATE: Final = "analyze.json"


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
            trials = Trials(server, options, rules, shown, thread_parameters)
            return Analysis(given, options, rules, trials, signals).run()
    except ServerError as error:
        console.print(f"nereid analyze: {address.url}: {error.message}", markup=False)
        return 1
    except PerfError as error:
        console.print(f"nereid analyze: {error}", markup=False)
        return 1
    except KeyboardInterrupt as stopped:
        console.print("interrupted; the same command goes on with what has been measured")
        return getattr(stopped, "status", 130)


class Analysis:
    """A search: predict, compare, measure; then files and what is printed."""

    def __init__(
        self,
        given: argparse.Namespace,
        options: Options,
        rules: Sequence[slo.Rule],
        trials: Trials,
        signals: Signals,
    ) -> None:
        self._given, self._options, self._rules = given, options, rules
        self._trials, self._signals = trials, signals
        self._now = present(trials.config, trials.threads)
        self._output: Path = given.output or Path(f"analyze-{options.model}")
        self._used = 0.0

    def run(self) -> int:
        """Search; return the exit status."""
        if why := unsuited(self._trials.config):
            raise PerfError(f"'{self._options.model}' cannot be analyzed: {why}")
        axes = _axes(self._given, self._trials)
        about = {"model": self._options.model, "url": self._options.address.url, "slo": self._given.slo}
        key = {**about, "axes": axes, "config": self._now}
        self._state = resumed(self._output / _STATE, key)
        self._state.save()  # or it cannot, which is told before the search
        text.console(stderr=True).print(self._bound(axes), markup=False)
        try:
            best = self._searched(axes)
            if self._given.keep and best is not None:
                self._trials.apply(best)
        except Stopped:
            self._tell(None)
            raise
        finally:
            if not self._given.keep:
                self._trials.restore()
        self._tell(best)
        return 4 if best is None else 0

    def _bound(self, axes: Axes) -> str:
        number = min(self._given.candidates, len(axes.candidates()))
        return (
            f"comparing {number} of {len(axes.candidates())} configurations and the present one, "
            f"then searching the rate of the best for {self._options.search_s:g} s at most (--search-time)"
        )

    def _searched(self, axes: Axes) -> Candidate | None:
        """Predict, measure, confirm; return the best candidate, None if none keeps the objective."""
        state, trials = self._state, self._trials
        self._look()
        if not state.predicted:
            limits = {rule.name: rule.limit for rule in self._rules if rule.name != "errors"}
            costs = trials.costs(axes)
            own = axes._replace(batches=[b for b in axes.batches if b <= max(costs.seconds[axes.threads[0]])])
            known = [self._now] if self._now.threads in costs.seconds else []
            state.predicted.update({c: best_rate(c, costs, limits) for c in [*own.candidates(), *known]})
            state.save()
        with Bench(self._options, trials.progress, signals=self._signals) as bench:
            if not state.rates:
                state.rates = self._compared(bench)
                state.save()
                self._look()
            end = time.monotonic() + self._options.search_s
            best = _best(bench, trials, state, lambda: end - time.monotonic())
        self._look()
        return best

    def _look(self) -> None:
        """Look how much of this machine others use."""
        self._used = max(self._used, used_by_others())

    def _compared(self, bench: Bench) -> dict[Candidate, list[float]]:
        """Measure the promising candidates against each other and the present one, by short closed loops."""
        state, given = self._state, self._given
        in_flight = self._trials.in_flight(max(state.predicted.values()))

        def measure(candidate: Candidate) -> float:
            turn = self._trials.turn(bench, candidate, in_flight)
            if turn.doubt:
                state.doubts[candidate] = turn.doubt
            return turn.rate

        return compete(promising(state.predicted, given.candidates), self._now, max(given.rounds, 1), measure)

    def _tell(self, best: Candidate | None) -> None:
        """Write the files, and print what was found."""
        state, given, now = self._state, self._given, self._now
        state.save()
        sentences = self._sentences(best)
        lines = report.rows(state, {now: "present", **({best: "best"} if best not in (None, now) else {})})
        made = configured(self._trials.config, best, self._trials.threads) if best is not None else {}
        pbtxt = ""
        if best is not None:
            when = datetime.now(UTC).isoformat(timespec="seconds")
            pbtxt = report.pbtxt(made, [f"Measured by nereid analyze, {when}.", *sentences])
            (self._output / "config.pbtxt").write_text(pbtxt)
        title = f"{given.model_name}: configurations within {given.slo}"
        (self._output / "report.html").write_text(report.page(title, sentences, lines, state.measured, pbtxt))
        if given.json:
            print(json.dumps(self._document(best, made, sentences), default=asdict))
            return
        console = text.console()
        console.print(report.printed(lines))
        written = "config.pbtxt, report.html" if best is not None else "report.html"
        for sentence in (*sentences, f"wrote {self._output}/{written} and {_STATE}"):
            console.print(sentence, markup=False)

    def _document(
        self, best: Candidate | None, made: Mapping[str, Any], sentences: Sequence[str]
    ) -> dict[str, Any]:
        state = self._state
        return {
            "best": best._asdict() if best is not None else None,
            "rate": state.measured[best].rate if best is not None else 0.0,
            "present": self._now._asdict(),
            "ratios": self._ratios(best),
            "config": made,
            "notes": sentences,
            "compared": listed(state.rates),
            "measured": listed(state.measured),
        }

    def _ratios(self, best: Candidate | None) -> list[float]:
        """Return how many times as much as the present configuration the best one answered, in turn."""
        rates = self._state.rates
        if best in (None, self._now) or best not in rates or self._now not in rates:
            return []
        return [one / other for one, other in zip(rates[best], rates[self._now], strict=False) if other]

    def _sentences(self, best: Candidate | None) -> list[str]:
        state, rules = self._state, self._given.slo
        if self._signals.number:
            found = ["A signal ended the search; the same command goes on with what was measured."]
        elif best is None:
            found = [f"Nothing was found that keeps {rules}: {_why(state.measured)}."]
        else:
            rate = state.measured[best].rate
            found = [f"{rate:.4g} requests a second keep {rules}: {best}.", self._beside(best)]
        busy = busy_because(self._used)
        doubts = [f"{candidate}: {why}." for candidate, why in state.doubts.items()]
        doubts += [f"{c}: {m.why}." for c, m in state.measured.items() if m.why and best is not None]
        return [*found, *([f"{busy[0].upper()}{busy[1:]}."] if busy else []), *doubts]

    def _beside(self, best: Candidate) -> str:
        if self._now == best:
            return "That is the present configuration."
        ratios = self._ratios(best)
        if not ratios or not min(ratios):
            return f"It was not compared with the present configuration: {self._now}."
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        return (
            f"With as many requests in flight it answers {median(ratios):.2f} times ({spread}) as much as "
            f"the present configuration, in turn: {self._now}."
        )


def _why(measured: Mapping[Candidate, Measured]) -> str:
    return "; ".join(f"{candidate}: {found.why}" for candidate, found in measured.items() if found.why)


def _axes(given: argparse.Namespace, trials: Trials) -> Axes:
    """Return what is searched: what is asked for, as far as the model has it.

    Raises:
        PerfError: threads of a backend that has no parameter for them.
    """
    batched = int(trials.config.get("max_batch_size", 0)) > 0
    if given.threads and not trials.threads:
        raise PerfError(f"--threads: the backend '{trials.config.get('backend')}' has no parameter for them")
    return Axes(
        (given.batches or _BATCHES) if batched else (0,),
        (given.delays if given.delays is not None else _DELAYS_US) if batched else (0,),
        given.instances or (1, 2),
        given.threads or (0,),
    )


def _best(bench: Bench, trials: Trials, state: State, left: Callable[[], float]) -> Candidate | None:
    """Measure the finalists in full, each against the best one before; return the best one.

    If none of them keeps the objective, the others are measured until one does, or there is no time left.
    """
    best: Candidate | None = None
    first = finalists(state.rates)
    for candidate in dict.fromkeys((*first, *ranked(state.rates, state.rates))):
        if (best is not None and candidate not in first) or left() <= 0:
            break
        least = state.measured[best].rate if best is not None else 0.0
        if candidate not in state.measured:
            expected = median(state.rates[candidate])
            found = trials.rate(bench, candidate, expected, left, least / BETTER)
            state.measured[candidate] = found
            state.save()
        if state.measured[candidate].rate > least and not state.measured[candidate].below:
            best = candidate
    return best
