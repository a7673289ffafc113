"""A search of configurations: what all kinds share, from the file of an earlier one to what is printed."""

from __future__ import annotations

import argparse
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, Generic

from nereid_client.tools.analyze import report
from nereid_client.tools.analyze.choice import BETTER, finalists, ranked
from nereid_client.tools.analyze.state import State, listed, resumed
from nereid_client.tools.analyze.trials import C, Measured, Trials
from nereid_client.tools.digits import four_digits
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Bench
from nereid_client.tools.perf.machine import busy_because, used_by_others
from nereid_client.tools.perf.options import Options
from nereid_client.tools.perf.report import text
from nereid_client.tools.perf.signals import Signals, Stopped

STATE: Final = "analyze.json"


class Analysis(ABC, Generic[C]):
    """A search: compare, measure; then files and what is printed.

    Args:
        given: the command line.
        options: what is asked.
        rules: the objective.
        trials: measures configurations.
        signals: end it.
        now: the present configuration.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        options: Options,
        rules: Sequence[slo.Rule],
        trials: Trials[C],
        signals: Signals,
        now: C,
    ) -> None:
        self._given, self._options, self._rules = given, options, rules
        self._trials, self._signals, self._now = trials, signals, now
        self._output: Path = given.output or Path(f"analyze-{options.model}")
        self._used = 0.0

    def run(self) -> int:
        """Search; return the exit status."""
        about = {"model": self._options.model, "url": self._options.address.url, "slo": self._given.slo}
        key = {**about, "axes": self.axes(), "config": self._now}
        self._state: State[C] = resumed(self._output / STATE, key, self.made_of)
        self._state.save()  # or it cannot, which is told before the search
        text.console(stderr=True).print(self.bound(), markup=False)
        try:
            best = self._searched()
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

    @abstractmethod
    def axes(self) -> Any:
        """Return what is searched, as JSON can have it: another search begins anew."""

    @abstractmethod
    def made_of(self, *fields: Any) -> C:
        """Return the configuration of its fields in JSON."""

    @abstractmethod
    def bound(self) -> str:
        """Return a sentence that says how much is going to be measured."""

    def predict(self) -> None:
        """Predict what configurations do, where that is possible."""

    @abstractmethod
    def compared(self, bench: Bench) -> dict[C, list[float]]:
        """Measure configurations in turn, by short closed loops; return their rates."""

    @abstractmethod
    def configs(self, best: C) -> Mapping[str, Mapping[str, Any]]:
        """Return the configurations that are written, by the file's name below the output directory."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return sentences about what limits."""

    def _searched(self) -> C | None:
        """Predict, compare, confirm; return the best configuration, None if none keeps the objective."""
        state, trials = self._state, self._trials
        self._look()
        self.predict()
        with Bench(self._options, trials.progress, signals=self._signals) as bench:
            if not state.rates:
                state.rates = self.compared(bench)
                state.save()
                self._look()
            end = time.monotonic() + self._options.search_s
            best = best_of(bench, trials, state, lambda: end - time.monotonic())
        self._look()
        return best

    def _look(self) -> None:
        """Look how much of this machine others use."""
        self._used = max(self._used, used_by_others())

    def _tell(self, best: C | None) -> None:
        """Write the files, and print what was found."""
        state, given, now = self._state, self._given, self._now
        state.save()
        sentences = self._sentences(best)
        marks = {now: "present", **({best: "best"} if best is not None and best != now else {})}
        lines = report.rows(state, marks)
        made = self.configs(best) if best is not None else {}
        written = {name: self._pbtxt(config, sentences) for name, config in made.items()}
        title = f"{given.model_name}: configurations within {given.slo}"
        written["report.html"] = report.page(
            title, sentences, lines, state.measured, "\n".join(written.values())
        )
        for name, content in written.items():
            (self._output / name).parent.mkdir(parents=True, exist_ok=True)
            (self._output / name).write_text(content)
        if given.json:
            print(json.dumps(self._document(best, made, sentences), default=asdict))
            return
        console = text.console()
        console.print(report.printed(lines))
        for sentence in (*sentences, f"wrote {self._output}/{', '.join(written)} and {STATE}"):
            console.print(sentence, markup=False)

    def _pbtxt(self, config: Mapping[str, Any], sentences: Sequence[str]) -> str:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return report.pbtxt(config, [f"Measured by nereid analyze, {when}.", *sentences])

    def _document(
        self, best: C | None, made: Mapping[str, Mapping[str, Any]], sentences: Sequence[str]
    ) -> dict[str, Any]:
        state = self._state
        return {
            "best": self.shown(best) if best is not None else None,
            "rate": state.measured[best].rate if best is not None else 0.0,
            "present": self.shown(self._now),
            "ratios": self._ratios(best),
            "config": self.document_config(made),
            "notes": sentences,
            "compared": listed(state.rates),
            "measured": listed(state.measured),
        }

    @abstractmethod
    def shown(self, candidate: C) -> Any:
        """Return a configuration as the JSON document has it."""

    @abstractmethod
    def document_config(self, made: Mapping[str, Mapping[str, Any]]) -> Any:
        """Return what is written as the JSON document has it."""

    def _ratios(self, best: C | None) -> list[float]:
        """Return how many times as much as the present configuration the best one answered, in turn."""
        rates = self._state.rates
        if best in (None, self._now) or best not in rates or self._now not in rates:
            return []
        return [one / other for one, other in zip(rates[best], rates[self._now], strict=False) if other]

    def _sentences(self, best: C | None) -> list[str]:
        state, rules = self._state, self._given.slo
        if self._signals.number:
            found = ["A signal ended the search; the same command goes on with what was measured."]
        elif best is None:
            found = [f"Nothing was found that keeps {rules}: {_why(state.measured)}."]
        else:
            rate = state.measured[best].rate
            found = [f"{four_digits(rate)} requests a second keep {rules}: {best}.", self._beside(best)]
        busy = busy_because(self._used)
        doubts = [f"{candidate}: {why}." for candidate, why in state.doubts.items()]
        doubts += [f"{c}: {m.why}." for c, m in state.measured.items() if m.why and best is not None]
        return [*found, *self.notes(), *([f"{busy[0].upper()}{busy[1:]}."] if busy else []), *doubts]

    def _beside(self, best: C) -> str:
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


def _why(measured: Mapping[C, Measured]) -> str:
    return "; ".join(f"{candidate}: {found.why}" for candidate, found in measured.items() if found.why)


def best_of(bench: Bench, trials: Trials[C], state: State[C], left: Callable[[], float]) -> C | None:
    """Measure the finalists in full, each against the best one before; return the best one.

    If none of them keeps the objective, the others are measured until one does, or there is no time left.
    """
    best: C | None = None
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
