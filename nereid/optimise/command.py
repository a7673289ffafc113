"""`nereid optimise`: its flags, the course of a search, what is printed."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
from rich.console import Console

from nereid.optimise import loads, report
from nereid.optimise.facts import facts_of, machine
from nereid.optimise.search import STATE, Search, State, fitting, resumed
from nereid.optimise.trials.bounded import Limits
from nereid.optimise.trials.candidates import Candidate, candidates
from nereid.optimise.trials.forms import Source, read_source
from nereid.optimise.trials.rows import OptimiseError, choose, enough
from nereid.optimise.trials.verdict import Outcome, Wanted
from nereid.optimise.write import Written, write
from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tape.rows import TapeError
from nereid_client.tape.where import parse_where
from nereid_client.tools.arguments import (
    above_zero,
    command_parser,
    count,
    from_zero,
    positive,
    seconds,
    share,
)
from nereid_client.tools.digits import four_digits
from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.report.text import console
from nereid_client.tools.perf.signals import Signals, Stopped
from nereid_client.tools.perf.slo import read_rules as read_objective
from nereid_client.tools.progress import Shown
from nereid_client.tools.replay.options import ReplayError
from nereid_client.tools.replay.rules import read_rules
from nereid_client.tools.tapes import opened

_ABOUT: Final = """Try cheaper forms of a model: OpenVINO, bfloat16, 8 bits, on GPUs TensorRT. Each is built
and run in a process of its own with limits, compared with the present form on recorded requests that have not
calibrated it, and measured in turn with it, on one thread. The model's files are not touched."""
_EXAMPLES: Final = """examples:
  nereid optimise classifier --tape /var/lib/nereid/tape --keep 'agreement>=0.995'
  nereid optimise models/classifier --tape tape --margin 0.05 --slo 'p99<20ms' --write

exit status: 0; 1 without a candidate that fits; 2 wrong arguments, or nothing to compare; 130 or 143 when a
signal ended it: the same command goes on with what was found."""
_KEEP: Final = re.compile(r"agreement\s*>=\s*(0?\.\d+|0|1|1\.0+)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(M|G)i?B?")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = command_parser("nereid optimise", _ABOUT, _EXAMPLES, allow_abbrev=False)
    add = made.add_argument
    add("model", metavar="MODEL", help="its name, or its directory")
    text = "that has it (model_repository)"
    add("--repository", type=Path, default=Path("model_repository"), metavar="DIR", help=text)
    add("--version", type=count, default=0, metavar="N", help="that is improved (the newest)")
    add("--tape", type=Path, required=True, metavar="DIR", help="what `--tape` of a server has recorded")
    add("--where", action="append", default=[], metavar="CONDITIONS", help="of rows, as `nereid tape show`")
    text = "the share of the answers that has to be within the rules (0.995)"
    add("--keep", type=_keep, default=Wanted().agreement, metavar="agreement>=SHARE", help=text)
    add("--margin", type=from_zero, metavar="X", help="classes that are closer are near ties (0.02)")
    add("--rules", type=Path, metavar="FILE", help="what may differ, as of `nereid replay --rules`")
    add("--confidence", type=share, default=Wanted().confidence, help="with which that is shown (0.99)")
    add("--gain", type=above_zero, default=Wanted().gain, metavar="TIMES", help="as fast at least (1.1)")
    text = "compare the best two on all processors too, within it: p99<20ms"
    add("--slo", metavar="RULES", help=text)
    add("--rows", type=positive, default=2000, metavar="N", help="that check a candidate, at most (2000)")
    add("--calibration", type=positive, default=64, metavar="N", help="rows that calibrate one, at most (64)")
    add("--only", type=_names, default=(), metavar="NAME,NAME", help="of the candidates")
    add("--max-seconds", type=seconds, default=Limits().seconds, metavar="S", help="of a trial (1800)")
    add("--max-memory", type=_size, default=Limits().memory, metavar="SIZE", help="of a trial (8G)")
    add("--output", type=Path, metavar="DIR", help="(optimise-NAME)")
    add("--write", action="store_true", help="write the best one as the next version, with a rollout.yaml")
    add("--json", action="store_true", help="print JSON")
    return made


def _keep(text: str) -> float:
    found = _KEEP.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not agreement>=SHARE: give e.g. 'agreement>=0.995'")
    return float(found[1])


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is no size: give e.g. 8G or 500M")
    return int(float(found[1]) * (1 << (30 if found[2] == "G" else 20)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    given = parser().parse_args(argv)
    told = console(stderr=True)
    try:
        with Signals() as signals:
            return Run(given, told, signals).run()
    except Stopped as stopped:
        told.print("interrupted; the same command goes on with what was found", markup=False)
        return stopped.status
    except (OptimiseError, TapeError, ReplayError, PerfError) as error:
        told.print(f"nereid optimise: {error}", markup=False)
        return 2


class Run:
    """A search as a command line asks for it."""

    def __init__(self, given: argparse.Namespace, told: Console, signals: Signals) -> None:
        self._given, self._told, self._signals = given, told, signals
        if given.slo:
            read_objective(given.slo)
        if given.confidence <= 0.5 or given.gain < 1:
            raise OptimiseError("--confidence is between 0.5 and 1, --gain is from 1 on")

    def run(self) -> int:
        """Search; return the exit status."""
        given = self._given
        source = _source(given)
        output = given.output or Path(f"optimise-{source.name}")
        here = machine()
        known = _chosen(candidates(facts_of(source), here), given.only)
        with Shown(self._told, source.name, "rows") as shown:
            search = self._search(source, output, shown)
            state = resumed(output, search.key())
            state.save(output)
            self._say(source, search, known, state)
            search.run(known, state)
            served = self._serve(search, known, state, shown)
        best = next(iter(fitting(state)), None)
        written = self._write(search, known, state, best)
        self._tell(search, state, best, served, written)
        return 1 if best is None else 0

    def _search(self, source: Source, output: Path, shown: Shown) -> Search:
        given = self._given
        rules = read_rules(given.rules).of(source.name) if given.rules else ComparisonRules()
        if given.margin is not None:
            rules = msgspec.structs.replace(rules, margin=given.margin)
        try:
            output.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OptimiseError(f"cannot write to {output}: {error.strerror}") from None
        with opened(given.tape) as tape:
            where = parse_where(*given.where)
            chosen = choose(tape, source.name, str(source.version), where, given.calibration, given.rows)
        return Search(
            source,
            given.tape,
            chosen,
            rules,
            Wanted(given.keep, given.confidence, given.gain),
            machine(),
            Limits(given.max_seconds, given.max_memory),
            output,
            lambda stage, done, total, note: shown.tick(stage, done, total, note),
        )

    def _say(self, source: Source, search: Search, known: Sequence[Candidate], state: State) -> None:
        """Say what is going to be done."""
        chosen = search.chosen
        lines = [
            f"{source.name} version {source.version}: {len(known)} candidates; {len(chosen.calibration):,}"
            f" rows calibrate and {len(chosen.check):,} newer ones check them"
            + (f", of {chosen.classes} classes" if chosen.classes else "")
        ]
        lines += [f"{number:,} rows are left out: {why}" for why, number in chosen.skipped.items()]
        lines += filter(None, [enough(len(chosen.check), search.wanted.agreement)])
        if state.outcomes:
            lines.append(f"{len(state.outcomes)} of them are known from an earlier run")
        for line in lines:
            self._told.print(line, markup=False)

    def _serve(
        self, search: Search, known: Sequence[Candidate], state: State, shown: Shown
    ) -> dict[loads.Form, list[float]]:
        """Measure the best two on all processors, if there is an objective; kept as the rest."""
        best = [each.name for each in fitting(state)]
        if not self._given.slo or not best:
            return {}
        key = json.dumps([self._given.slo, best])
        if state.notes != [key]:
            chosen = [each for name in best for each in known if each.name == name]
            rates = loads.measure(
                search.directory, search.source, chosen, search.tape, self._given.slo, self._signals, shown
            )
            state.served = {json.dumps(list(form)): found for form, found in rates.items()}
            state.notes = [key]
            state.save(search.directory)
        return {loads.Form(*json.loads(form)): found for form, found in state.served.items()}

    def _write(
        self, search: Search, known: Sequence[Candidate], state: State, best: Outcome | None
    ) -> Written | None:
        if best is None or not self._given.write:
            return None
        candidate = next(each for each in known if each.name == best.name)
        return write(search, candidate, best)

    def _tell(
        self,
        search: Search,
        state: State,
        best: Outcome | None,
        served: dict[loads.Form, list[float]],
        written: Written | None,
    ) -> None:
        sentences = _sentences(search, best, served, self._given.slo or "", written)
        lines = _served_rows(served)
        title = f"{search.source.name}: forms that keep agreement of {search.wanted.agreement:g}"
        when = datetime.now(UTC).isoformat(timespec="seconds")
        (search.directory / "report.html").write_text(report.page(title, [*sentences, when], state, lines))
        if self._given.json:
            print(json.dumps(_document(state, best, sentences, lines, written)))
            return
        shown = console()
        shown.print(report.printed(report.HEAD, report.rows(state)))
        if worst := report.worst_rows(state):
            shown.print(report.printed(report.WORST, worst))
        if lines:
            shown.print(report.printed(report.SERVED, lines))
        for sentence in (*sentences, f"wrote {search.directory}/report.html and {STATE}"):
            shown.print(sentence, markup=False, soft_wrap=True)


def _source(given: argparse.Namespace) -> Source:
    path = Path(given.model)
    if len(path.parts) > 1 or path.is_dir():
        path = path.absolute()
        return read_source(path.parent, path.name, given.version)
    return read_source(given.repository.absolute(), given.model, given.version)


def _chosen(known: Sequence[Candidate], only: Sequence[str]) -> list[Candidate]:
    names = [each.name for each in known]
    if unknown := [name for name in only if name not in names]:
        raise OptimiseError(
            f"there is no candidate '{unknown[0]}' for this model: {', '.join(names) or 'none'}"
        )
    if not known:
        raise OptimiseError(
            "models of this backend have no other form: nereid analyze has instances and batches"
        )
    return [each for each in known if not only or each.name in only]


def _sentences(
    search: Search,
    best: Outcome | None,
    served: dict[loads.Form, list[float]],
    objective: str,
    written: Written | None,
) -> list[str]:
    if best is None:
        return ["No candidate fits: the table says why."]
    found = [f"{best.name} ({best.about}): {best.why}."]
    forms = {each.name: loads.best_of(served, each.name) for each in served}
    now = forms.pop(loads.AS_IT_IS, None)
    if forms:
        form = max(forms.values(), key=lambda each: median(served[each]))
        ratios = loads.ratios(served, form)
        own = median(loads.ratios(served, now)) if now else 1.0
        found.append(
            f"With as many requests in flight as {objective} has room for, {form} answers"
            f" {median(ratios):.2f} times as much as the present configuration ({min(ratios):.2f} to"
            f" {max(ratios):.2f}, in turn), and the present form at its best {own:.2f} times."
        )
    if written is not None:
        found += written.sentences
    elif not search.source.directory.joinpath("rollout.yaml").exists():
        found.append("--write makes it the next version, with a rollout that begins with recorded requests.")
    return found


def _served_rows(served: dict[loads.Form, list[float]]) -> list[list[str]]:
    rows = []
    for form in sorted(served, key=lambda each: -median(served[each])):
        ratios = loads.ratios(served, form)
        between = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        rows.append([str(form), four_digits(median(served[form])), between])
    return rows


def _document(
    state: State,
    best: Outcome | None,
    sentences: Sequence[str],
    served: list[list[str]],
    written: Written | None,
) -> dict[str, Any]:
    return {
        "best": None if best is None else best.name,
        "candidates": msgspec.to_builtins(report.ordered(state)),
        "key": msgspec.to_builtins(state.key),
        "served": served,
        "notes": list(sentences),
        "written": None if written is None else written.version,
    }
