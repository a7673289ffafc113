"""What the best candidates answer a second on all processors, in turn with the present form, within an SLO.

A server of its own, `nereid dev`, has the model with the files of all of them; a form is a load with a
configuration, as in `nereid analyze`, which has the measurements.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied
from app.core.system.cpus import available_cpus
from backends.registry.descriptions import described
from nereid.optimise.trials import bounded
from nereid.optimise.trials.candidates import Candidate
from nereid.optimise.trials.forms import Source, file_of, formed, lay_out
from nereid.optimise.trials.rows import OptimiseError
from nereid_client import Server, ServerError
from nereid_client.tools.analyze.choice import compete
from nereid_client.tools.analyze.trials import Trials
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Bench, Progress
from nereid_client.tools.perf.command.flags import read_options
from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.signals import Signals

AS_IT_IS: Final = "present"
_START_S: Final = 120.0
_LOAD_S: Final = 300.0
_POLL_S: Final = 0.1


class Form(NamedTuple):
    """A form of the model with so many instances and threads; 0 for as its configuration says."""

    name: str
    instances: int = 0
    threads: int = 0

    def __str__(self) -> str:
        if not self.instances:
            return self.name
        instances = "1 instance" if self.instances == 1 else f"{self.instances} instances"
        return f"{self.name}: {instances}, {self.threads} thread{'s' * (self.threads > 1)}"


class FormTrials(Trials[Form]):
    """Measures forms of a model, each of which is a load with a configuration."""

    def __init__(
        self,
        server: Server,
        model: str,
        configs: Mapping[Form, Mapping[str, Any]],
        rules: Sequence[slo.Rule],
        progress: Progress,
    ) -> None:
        super().__init__(rules, progress)
        self._server, self._model, self._configs = server, model, configs
        self._applied: Form | None = None

    def apply(self, candidate: Form) -> None:
        """As `Trials.apply`."""
        if candidate == self._applied:
            return
        self.progress.tick(f"load {candidate}", 0, 1)
        try:
            self._server.load(self._model, self._configs[candidate], timeout=_LOAD_S)
            self._server.wait_ready(self._model, timeout=_LOAD_S)
        except ServerError as error:
            raise PerfError(f"the server does not load {candidate}: {error.message}") from None
        self._applied = candidate

    def restore(self) -> None:
        """As `Trials.restore`: nobody else uses this server."""


def forms_of(names: Sequence[str], cpus: int) -> list[Form]:
    """Return the forms that are compared: one execution on all processors, or one on each."""
    shares = dict.fromkeys(((1, cpus), (cpus, 1)))
    return [Form(name, instances, threads) for name in names for instances, threads in shares]


def configured(config: mc.ModelConfig, form: Form) -> Mapping[str, Any]:
    """Return a configuration of a form as JSON has it."""
    made = copied(config)
    if form.instances:
        kind = config.instance_group[0].kind if config.instance_group else mc.ModelInstanceGroup.KIND_CPU
        made.ClearField("instance_group")
        made.instance_group.add(count=form.instances, kind=kind)
        if parameter := described(config.backend).thread_parameter:
            made.parameters[parameter].string_value = str(form.threads)
    found: Mapping[str, Any] = json_format.MessageToDict(made, preserving_proto_field_name=True)
    return found


def measure(
    directory: Path,
    source: Source,
    candidates: Sequence[Candidate],
    tape: Path,
    objective: str,
    signals: Signals,
    progress: Progress,
    rounds: int = 4,
) -> dict[Form, list[float]]:
    """Measure the forms in turn; return what each answers a second, by rounds.

    Raises:
        OptimiseError: the server does not start, or does not load one of them.
    """
    repository, configs = _repository(directory, source, candidates)
    forms = forms_of([AS_IT_IS, *(each.name for each in candidates)], available_cpus())
    now = Form(AS_IT_IS)
    by_form = {form: configured(configs[form.name], form) for form in (now, *forms)}
    try:
        rules = slo.read_rules(objective)
        with _served(repository, directory / "server.txt") as url, Server(url, retry=False) as server:
            arguments = ["-m", source.name, "-u", url.removeprefix("http://"), "--input-data", str(tape)]
            options, _ = read_options(arguments)
            trials = FormTrials(server, source.name, by_form, rules, progress)
            trials.apply(now)
            with Bench(options, progress, signals=signals) as bench:
                in_flight, _ = trials.filled(bench, now, 1)
                # More requests at once than the objective has time for would only wait.
                in_flight = max(in_flight, available_cpus())
                return compete(forms, now, rounds, lambda form: trials.turn(bench, form, in_flight).rate)
    except (PerfError, ServerError) as error:
        raise OptimiseError(f"the best candidates could not be served: {error}") from None


def ratios(rates: Mapping[Form, Sequence[float]], best: Form) -> list[float]:
    """Return how many times as much as the present form a form answered, round by round."""
    now = rates[Form(AS_IT_IS)]
    return [one / other for one, other in zip(rates[best], now, strict=False) if other]


def best_of(rates: Mapping[Form, Sequence[float]], name: str) -> Form:
    """Return the form of a candidate that answered most."""
    return max((form for form in rates if form.name == name), key=lambda form: median(rates[form]))


def _repository(
    directory: Path, source: Source, candidates: Sequence[Candidate]
) -> tuple[Path, dict[str, mc.ModelConfig]]:
    """Lay the model out with the files of all candidates; return configurations by name."""
    own = directory / "served"
    shutil.rmtree(own, ignore_errors=True)
    plain = Candidate(AS_IT_IS, "", source.config.backend)
    models = lay_out(own, source, plain, threads=1)
    files = models / "present" / "1"
    configs = {AS_IT_IS: copied(source.config)}
    for candidate in candidates:
        config = formed(source, candidate)
        if candidate.file:
            built = file_of(directory / "candidates" / candidate.name / "models", candidate)
            for path in built.parent.glob(f"{built.stem}.*"):
                if not path.is_symlink():
                    (files / f"{candidate.name}{path.suffix}").symlink_to(path.absolute())
            config.default_model_filename = f"{candidate.name}{built.suffix}"
        configs[candidate.name] = config
    repository = own / "repository"
    repository.mkdir()
    (models / "present").rename(repository / source.name)
    (repository / source.name / "config.pbtxt").unlink()
    for config in configs.values():
        config.ClearField("version_policy")  # of the source's versions there is one here
        for output in config.output:
            output.label_filename = ""
    (repository / source.name / "config.pbtxt").write_text(_text(configs[AS_IT_IS]))
    return repository, configs


def _text(config: mc.ModelConfig) -> str:
    from google.protobuf import text_format

    return str(text_format.MessageToString(config))


@contextmanager
def _served(repository: Path, log: Path) -> Iterator[str]:
    """Serve a repository while the block runs; yield the address of its HTTP API."""
    ports = _free_ports(3)
    flags = [
        f"--{name}={port}"
        for name, port in zip(("http-port", "grpc-port", "metrics-port"), ports, strict=True)
    ]
    command = [
        sys.executable,
        "-m",
        "nereid.optimise.serve",
        str(repository),
        "--model-control-mode=explicit",
        *flags,
    ]
    with log.open("wb") as printed:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{ports[0]}"
        _wait(process, url, log)
        yield url
    finally:
        bounded.end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + _START_S
    with Server(url, retry=False) as server:
        while True:
            try:
                server.wait_ready(timeout=1.0)
            except (ServerError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise OptimiseError(
                        f"the server for the best candidates does not start: {bounded.last_line(log)}"
                    ) from None
                time.sleep(_POLL_S)
            else:
                return


def _free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
