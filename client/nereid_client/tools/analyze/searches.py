"""The two kinds of search: of a model, and of the steps of an ensemble."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nereid_client import Server
from nereid_client.tools.analyze.analysis import Analysis
from nereid_client.tools.analyze.choice import compete, promising
from nereid_client.tools.analyze.ensemble import (
    Combination,
    EnsembleTrials,
    computing,
    improve,
    limiting,
    neighbours,
)
from nereid_client.tools.analyze.loads import Loads
from nereid_client.tools.analyze.model_trials import ModelTrials
from nereid_client.tools.analyze.queue_model import best_rate
from nereid_client.tools.analyze.space import Axes, Candidate, configured, present, unsuited
from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Bench, Progress
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.server_share import models_of
from nereid_client.tools.perf.signals import Signals

_BATCHES = (1, 2, 4, 8, 16)
_DELAYS_US = (0, 500, 2000)


class ModelAnalysis(Analysis[Candidate]):
    """A search of one model: predict by what executions take, compare, measure."""

    def __init__(
        self,
        given: argparse.Namespace,
        options: Options,
        rules: Sequence[slo.Rule],
        loads: Loads,
        signals: Signals,
        progress: Progress,
    ) -> None:
        if why := unsuited(loads.config):
            raise PerfError(f"'{options.model}' cannot be analyzed: {why}")
        self._loads, self._axes = loads, _axes(given, loads)
        self._costed = ModelTrials(loads, options, rules, progress)
        super().__init__(given, options, rules, self._costed, signals, present(loads.config, loads.threads))

    def axes(self) -> Axes:
        """As `Analysis.axes`."""
        return self._axes

    def made_of(self, *fields: Any) -> Candidate:
        """As `Analysis.made_of`."""
        return Candidate(*fields)

    def bound(self) -> str:
        """As `Analysis.bound`."""
        axes = self._axes
        number = min(self._given.candidates, len(axes.candidates()))
        return (
            f"comparing {number} of {len(axes.candidates())} configurations and the present one, "
            f"then searching the rate of the best for {all_digits(self._options.search_s)} s at most "
            "(--search-time)"
        )

    def predict(self) -> None:
        """As `Analysis.predict`: by what executions take."""
        state, axes = self._state, self._axes
        if state.predicted:
            return
        limits = {rule.name: rule.limit for rule in self._rules if rule.name != "errors"}
        costs = self._costed.costs(axes)
        own = axes._replace(batches=[b for b in axes.batches if b <= max(costs.seconds[axes.threads[0]])])
        known = [self._now] if self._now.threads in costs.seconds else []
        state.predicted.update({c: best_rate(c, costs, limits) for c in [*own.candidates(), *known]})
        state.save()

    def compared(self, bench: Bench) -> dict[Candidate, list[float]]:
        """As `Analysis.compared`: the promising ones against each other and the present one."""
        state, given = self._state, self._given
        in_flight = self._trials.in_flight(max(state.predicted.values()))

        def measure(candidate: Candidate) -> float:
            turn = self._trials.turn(bench, candidate, in_flight)
            if turn.doubt:
                state.doubts[candidate] = turn.doubt
            return turn.rate

        return compete(promising(state.predicted, given.candidates), self._now, max(given.rounds, 1), measure)

    def configs(self, best: Candidate) -> Mapping[str, Mapping[str, Any]]:
        """As `Analysis.configs`."""
        return {"config.pbtxt": configured(self._loads.config, best, self._loads.threads)}

    def notes(self) -> list[str]:
        """As `Analysis.notes`: of one model there are none."""
        return []

    def shown(self, candidate: Candidate) -> Any:
        """As `Analysis.shown`."""
        return candidate._asdict()

    def document_config(self, made: Mapping[str, Mapping[str, Any]]) -> Any:
        """As `Analysis.document_config`."""
        return next(iter(made.values()), {})


class EnsembleAnalysis(Analysis[Combination]):
    """A search of the steps of an ensemble by what the ensemble answers.

    Args:
        steps: the models that it calls, by name, those that cannot be searched too.
        batch: the ensemble's `max_batch_size`: its steps have to take as much.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        options: Options,
        rules: Sequence[slo.Rule],
        steps: Mapping[str, Loads],
        batch: int,
        signals: Signals,
        progress: Progress,
    ) -> None:
        self._steps = steps
        searched = {name: loads for name, loads in steps.items() if not unsuited(loads.config)}
        if not searched:
            why = "; ".join(f"'{name}': {unsuited(loads.config)}" for name, loads in steps.items())
            raise PerfError(f"'{options.model}' has no step that can be analyzed: {why}")
        self._axes = {name: _step_axes(given, loads, batch) for name, loads in searched.items()}
        now = Combination(
            tuple((name, present(loads.config, loads.threads)) for name, loads in searched.items())
        )
        self._limits: dict[str, str] = {}
        super().__init__(given, options, rules, EnsembleTrials(searched, rules, progress), signals, now)

    def axes(self) -> Mapping[str, Axes]:
        """As `Analysis.axes`."""
        return self._axes

    def made_of(self, *fields: Any) -> Combination:
        """As `Analysis.made_of`."""
        (steps,) = fields
        return Combination(tuple((name, Candidate(*own)) for name, own in steps))

    def bound(self) -> str:
        """As `Analysis.bound`."""
        return (
            f"comparing {self._given.candidates} configurations at most of the step that limits, again as "
            f"long as the ensemble answers more, for {all_digits(self._options.search_s)} s at most "
            "(--search-time), "
            f"then searching the rate of the best for as long"
        )

    def compared(self, bench: Bench) -> dict[Combination, list[float]]:
        """As `Analysis.compared`: by the step that limits."""
        trials, given = self._trials, self._given
        end = time.monotonic() + self._options.search_s
        in_flight = 1

        def measure(combination: Combination) -> float:
            turn = trials.turn(bench, combination, in_flight)
            if turn.doubt:
                self._state.doubts[combination] = turn.doubt
            return turn.rate

        def busiest(combination: Combination) -> list[str]:
            nonlocal in_flight
            counts = {
                name: present(each.config, each.threads).instances for name, each in self._steps.items()
            }
            counts |= {name: own.instances for name, own in combination.steps}
            in_flight, result = trials.filled(bench, combination, in_flight)
            shares = computing(result, counts)
            self._limits[str(combination)] = limiting(shares)
            searched = dict(combination.steps)
            return [name for name in dict.fromkeys((*shares, *searched)) if name in searched]

        best, known = improve(
            self._now,
            lambda step, own: neighbours(own, self._axes[step], given.candidates),
            busiest,
            measure,
            max(given.rounds, 1),
            lambda: time.monotonic() < end,
        )
        # In turn once more: the present one was measured long ago.
        last = compete([best], self._now, max(given.rounds, 2), measure)
        return {combination: [rate] for combination, rate in known.items() if combination not in last} | last

    def configs(self, best: Combination) -> Mapping[str, Mapping[str, Any]]:
        """As `Analysis.configs`: of the steps that differ."""
        return {
            f"{name}/config.pbtxt": configured(self._steps[name].config, own, self._steps[name].threads)
            for name, own in best.steps
            if own != self._now.of(name)
        }

    def notes(self) -> list[str]:
        """As `Analysis.notes`."""
        now = self._limits.get(str(self._now), "")
        found = {f"At first: {now}": now} if now else {}
        last = next(reversed(self._limits.values()), "")
        return [*found, *([f"Then: {last}"] if last and last != now else [])]

    def shown(self, candidate: Combination) -> Any:
        """As `Analysis.shown`."""
        return {name: own._asdict() for name, own in candidate.steps}

    def document_config(self, made: Mapping[str, Mapping[str, Any]]) -> Any:
        """As `Analysis.document_config`."""
        return {name.partition("/")[0]: config for name, config in made.items()}


def analysis(
    given: argparse.Namespace,
    options: Options,
    rules: Sequence[slo.Rule],
    server: Server,
    signals: Signals,
    progress: Progress,
    thread_parameters: Mapping[str, str],
) -> Analysis[Any]:
    """Return the search of a model, or of the steps of an ensemble.

    Raises:
        PerfError: it cannot be searched, with the reason.
        ServerError: the server does not have it.
    """
    loads = Loads(server, options.model, progress, thread_parameters)
    if not loads.config.get("ensemble_scheduling"):
        return ModelAnalysis(given, options, rules, loads, signals, progress)
    names = models_of(server, options.model, "")[1:]
    steps = {name: Loads(server, name, progress, thread_parameters) for name in names}
    steps = {name: step for name, step in steps.items() if not step.config.get("ensemble_scheduling")}
    batch = int(loads.config.get("max_batch_size", 0))
    return EnsembleAnalysis(given, options, rules, steps, batch, signals, progress)


def _step_axes(given: argparse.Namespace, loads: Loads, batch: int) -> Axes:
    """Return what is searched of a step of an ensemble that takes batches of so many rows."""
    axes = _axes(given, loads)
    return axes._replace(batches=[each for each in axes.batches if each >= batch] or [batch])


def _axes(given: argparse.Namespace, loads: Loads) -> Axes:
    """Return what is searched: what is asked for, as far as the model has it.

    Raises:
        PerfError: threads of a backend that has no parameter for them.
    """
    batched = int(loads.config.get("max_batch_size", 0)) > 0
    if given.threads and not loads.threads:
        raise PerfError(f"--threads: the backend '{loads.config.get('backend')}' has no parameter for them")
    return Axes(
        (given.batches or _BATCHES) if batched else (0,),
        (given.delays if given.delays is not None else _DELAYS_US) if batched else (0,),
        given.instances or (1, 2),
        given.threads or (0,),
    )
