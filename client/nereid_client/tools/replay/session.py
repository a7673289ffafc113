"""The course of a replay: read the tape, ask twice for a few rows, send all of them, compare."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from nereid_client import DeadlineExceeded, Server, ServerError, Unavailable
from nereid_client.tape.reader import Tape
from nereid_client.tape.records import MAGIC
from nereid_client.tape.segments import encode_row
from nereid_client.tools.perf.generator.arrivals import Offsets
from nereid_client.tools.perf.machine import busy_because, used_by_others
from nereid_client.tools.perf.options import Address
from nereid_client.tools.perf.server_share import Counts, counts_of, share
from nereid_client.tools.perf.signals import Signals
from nereid_client.tools.progress import Shown
from nereid_client.tools.replay.differences import Differences, Expected, Noise, noise_of, recorded
from nereid_client.tools.replay.latency import Latencies, latencies
from nereid_client.tools.replay.load import Loads, Ran
from nereid_client.tools.replay.options import Options, ReplayError
from nereid_client.tools.replay.plan import Plan, few, none_left, read_plan
from nereid_client.tools.replay.rules import Rules
from nereid_client.tools.replay.spool import Spool, Target

_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Outcome:
    """What a replay has shown.

    Attributes:
        now, then: the runs; `then` is None for recorded answers.
        server, beside: names and versions of the servers; `beside` is "" for recorded answers.
        cache_hits: answers that the server's response cache gave; None where the server does not say.
        seconds: that the rows took when they were recorded.
        busy: how much of this machine others used before, as it is told; "" if that was little.
    """

    options: Options
    plan: Plan
    differences: Differences
    latencies: Latencies
    noise: Noise | None
    now: Ran
    then: Ran | None
    server: str
    beside: str
    cache_hits: int | None
    seconds: float
    busy: str = ""


@dataclass(frozen=True)
class _Files:
    """What is sent, and what was recorded: None for answers of another server."""

    target: Spool
    beside: Spool | None
    twice: tuple[Spool, ...]
    recorded: Path | None

    @property
    def spools(self) -> Sequence[Spool]:
        return [self.target, *([self.beside] if self.beside else []), *self.twice]


class Replay:
    """A replay of a tape; `directory` is where files are written meanwhile."""

    def __init__(
        self, tape: Tape, options: Options, rules: Rules, shown: Shown, signals: Signals, directory: Path
    ) -> None:
        self._tape, self._options, self._rules = tape, options, rules
        self._shown, self._signals, self._directory = shown, signals, directory

    def run(self) -> Outcome:
        """Repeat the rows, and compare.

        Raises:
            ReplayError: a server cannot be reached, or no row can be repeated.
            TapeError: the tape cannot be read.
            Stopped: by a signal, before the rows were sent.
        """
        options = self._options
        self._shown.tick("reading the tape", 0, 1, unit="tape")
        plan = read_plan(self._tape, options)
        with _asked(options.address, options) as server:
            decoupled = _fits(plan, server, options, self._rules, options.address, options.version)
            target = Target(
                options.address, options.headers, options.models, options.version, decoupled=decoupled
            )
            if options.beside is None:
                versions = _ready(plan, server, options)
                return self._run(plan, server, target, None, replace(target, recorded=versions), "")
            with _asked(options.beside, options) as other:
                decoupled = _fits(plan, other, options, self._rules, options.beside, "")
                versions = _ready(plan, other, options)
                stable = Target(options.beside, options.headers, options.models, "", versions, decoupled)
                return self._run(plan, server, target, stable, stable, _about(other))

    def _run(
        self, plan: Plan, server: Server, target: Target, beside: Target | None, stable: Target, about: str
    ) -> Outcome:
        options, seconds = self._options, plan.seconds
        moments = self._moments(plan)
        sample = few(plan, options.noise) if options.noise else Plan([])
        files = self._written(plan, target, beside, sample, stable)
        busy = busy_because(used_by_others())
        with Loads(options, self._shown, self._signals) as loads:
            noise = self._noise(loads, files.twice, sample)
            then = loads.run(files.beside, moments, "beside") if files.beside is not None else None
            self._signals.check()
            before = _counts(plan, server, options)
            now = loads.run(files.target, moments, "replay")
            hits = _hits(before, _counts(plan, server, options))
            way_ns = loads.way_ns(target) if then is None and not self._signals.number else 0
        self._shown.tick("comparing", 0, 1, unit="tape")
        rules = noise.rules(self._rules, plan.models) if noise is not None else self._rules
        found = Differences(rules, late=bool(now.result.void))
        pairs = self._compared(plan, found, now, then, files.recorded)
        for spool in (files.target, files.beside):
            plan.skipped.update(spool.refused if spool else {})
        measured = latencies(*pairs, options.threshold, _no_verdict(options, now, then), way_ns)
        return Outcome(
            options, plan, found, measured, noise, now, then, _about(server), about, hits, seconds, busy
        )

    def _moments(self, plan: Plan) -> Offsets | None:
        """Return when the rows begin; None for as fast as it goes."""
        options = self._options
        if not options.speed:
            return None
        moments = plan.moments(options.speed)
        if (last := moments[-1] / 1e9) > options.max_seconds:
            raise ReplayError(
                f"the rows take {last:,.0f} s, more than {options.max_seconds:,.0f} s (--max-seconds): "
                "choose some with --where, or give another --speed"
            )
        return moments

    def _written(
        self, plan: Plan, target: Target, beside: Target | None, sample: Plan, stable: Target
    ) -> _Files:
        """Write the requests of all runs, and the recorded answers: a tape may lose rows meanwhile."""
        directory, most = self._directory, self._options.max_bytes
        twice = (0, 1) if sample.rows else ()
        files = _Files(
            Spool(directory / "replay", target, plan, most),
            Spool(directory / "beside", beside, plan, most) if beside is not None else None,
            tuple(Spool(directory / f"noise{turn}", stable, sample, most) for turn in twice),
            None if beside is not None else directory / "recorded.open",
        )
        keys = {row.key for row in plan.rows}
        number = len(keys)
        with ExitStack() as stack:
            for spool in files.spools:
                stack.callback(spool.close)
            answers = stack.enter_context(open(files.recorded or os.devnull, "wb"))
            answers.write(MAGIC)
            for row in self._tape.rows(where=lambda row: row.key in keys):
                self._shown.tick("reading the tape", number - len(keys), number, unit="rows")
                keys.discard(row.key)
                for spool in files.spools:
                    spool.add(row)
                if files.recorded is not None:
                    answers.writelines(encode_row(msgspec.structs.replace(row, inputs=())))
        if keys:
            plan.skipped["damaged on the disk, or removed meanwhile"] += len(keys)
        for run in (files.target, files.beside):
            if run is not None and not len(run.requests):
                raise ReplayError(none_left(self._tape, plan.skipped + run.refused))
        return files

    def _noise(self, loads: Loads, twice: Sequence[Spool], sample: Plan) -> Noise | None:
        """Ask twice for a few rows."""
        if not twice or not len(twice[0].requests):
            return None
        first, second = (loads.run(spool, None, "noise").answers for spool in twice)
        self._signals.check()
        return noise_of(sample, self._rules, lambda number: (first.get(number), second.get(number)))

    def _compared(
        self, plan: Plan, found: Differences, now: Ran, then: Ran | None, kept: Path | None
    ) -> tuple[list[int], list[int]]:
        """Compare all answers; return the latencies of both, in ns, of rows that both have answered."""
        pairs: list[tuple[int, int]] = []
        for number, expected in self._expected(plan, then, kept):
            row = plan.rows[number]
            found.add(row, expected, now.answers.get(number))
            before = row.latency_ns if then is None else then.answers.service_ns.get(number, 0)
            if before and (after := now.answers.service_ns.get(number, 0)):
                pairs.append((before, after))
        return [each[0] for each in pairs], [each[1] for each in pairs]

    def _expected(self, plan: Plan, then: Ran | None, kept: Path | None) -> Iterator[tuple[int, Expected]]:
        """Yield the number of each row with what it is to be answered with."""
        if then is not None:
            for number in range(len(plan.rows)):
                if (answer := then.answers.get(number)) is not None:
                    yield number, Expected(answer)
        elif kept is not None:
            numbers = {row.key: number for number, row in enumerate(plan.rows)}
            for row in Tape(kept).rows():
                yield numbers[row.key], recorded(row)


@contextmanager
def _asked(address: Address, options: Options) -> Iterator[Server]:
    """Open a server; what it does not answer becomes a `ReplayError`."""
    try:
        with Server(
            address.url, headers=options.headers, tls=address.tls, retry=False, timeout=_TIMEOUT_S
        ) as server:
            yield server
    except ServerError as error:
        raise ReplayError(f"{address.url}: {error.message}") from None


def _fits(
    plan: Plan, server: Server, options: Options, rules: Rules, address: Address, version: str
) -> frozenset[str]:
    """Take out of a plan the rows of models that a server cannot be asked for; return which are decoupled.

    Raises:
        ReplayError: a rule compares nothing, or no row is left.
    """
    decoupled = set()
    for model in plan.models:
        try:
            name = options.models.get(model, model)
            signature = server.model(name, version).signature()
            for output in signature.outputs.values():
                why = rules.of(model).nothing_compared(output.name, output.datatype, output.shape)
                if why:
                    raise ReplayError(f"--rules: model '{model}': {why}")
            if signature.decoupled:
                decoupled.add(model)
                if address.protocol == "http":
                    plan.leave(model, f"of model '{model}', which is decoupled: give -i grpc")
        except (Unavailable, DeadlineExceeded):
            raise
        except ServerError as error:
            plan.leave(model, f"of model '{model}': {address.url}: {error.message}")
    if not plan.rows:
        raise ReplayError(f"no row can be repeated{_told(plan)}")
    return frozenset(decoupled)


def _told(plan: Plan) -> str:
    return "".join(f"; {number} {why}" for why, number in plan.skipped.items())


def _ready(plan: Plan, server: Server, options: Options) -> frozenset[tuple[str, str]]:
    """Return the models and versions that had answered, as far as the server has them."""
    answered = dict.fromkeys((row.model, row.version) for row in plan.rows if row.version)
    return frozenset(
        (model, version)
        for model, version in answered
        if server.ready(options.models.get(model, model), version)
    )


def _counts(plan: Plan, server: Server, options: Options) -> list[Counts | None]:
    return [counts_of(server, [options.models.get(model, model)], options.version) for model in plan.models]


def _hits(before: Sequence[Counts | None], after: Sequence[Counts | None]) -> int | None:
    """Return how many answers came from the response cache; None if the server does not tell."""
    found = [share(*each) for each in zip(before, after, strict=True)]
    known = [each.cache_hits for each in found if each is not None]
    return sum(known) if known else None


def _about(server: Server) -> str:
    metadata = server.metadata()
    return f"{metadata.get('name', '')} {metadata.get('version', '')}".strip()


def _no_verdict(options: Options, now: Ran, then: Ran | None) -> str:
    """Return why latencies cannot be judged; "" if they can."""
    if then is None and options.speed != 1:
        return "no verdict: recorded latencies are those of the recorded speed (--speed 1)"
    for ran in (now, then):
        if ran is not None and ran.result.void:
            return f"no verdict: {ran.result.void}"
    return ""
