"""Several instances of a Python model: processes behind one scheduler."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.observability.statistics import CustomSample
from app.core.tensors import InferResponse
from deployments.replica.served_model import ServedModel
from deployments.spec import UPDATE
from tests.unit.deployments.served_model_bench import BATCHING, CONFIG, Bench, request
from tests.waiting import block_until

MODEL = """
import os, time
import triton_python_backend_utils as pb_utils

DONE = []  # state of the module: no other instance sees it


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"] + "/"
        self.pid = os.getpid()
        self.family = pb_utils.MetricFamily("executed", "", pb_utils.MetricFamily.COUNTER)
        self.executed = self.family.Metric()
        open(f"{self.folder}made-{self.pid}", "w").close()
        while os.path.exists(self.folder + "wait"):
            time.sleep(0.001)

    def execute(self, requests):
        self.executed.increment(1)
        DONE.append(len(requests))
        for request in requests:
            getattr(self, request.request_id().split()[0], self.answer)()
        about = {"pid": self.pid, "batch": len(requests), "done": len(DONE)}
        outputs = [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([output], parameters=about) for output in outputs]

    def answer(self):
        pass

    def meet(self):
        open(f"{self.folder}met-{self.pid}", "w").close()
        while sum(name.startswith("met-") for name in os.listdir(self.folder)) < 4:
            time.sleep(0.001)

    def hold(self):
        open(f"{self.folder}held-{self.pid}", "w").close()
        while not os.path.exists(self.folder + "go"):
            time.sleep(0.001)

    def die(self):
        os._exit(3)
"""
PYTHON = CONFIG.replace("probe", "python")
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 direct {} }\n"
UNHEALTHY = "is not healthy."


def group(count: int) -> str:
    return f'instance_group [ {{ name: "g" count: {count} kind: KIND_CPU }} ]\n'


class Models:
    """The bench, and what the model wrote into its folder."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.folder = bench.directory / "m"
        (self.folder / "1" / "model.py").write_text(MODEL)

    def load(self, config: str, **fields: Any) -> ServedModel:
        return self.bench.load(PYTHON + config, **fields)

    def ask(self, name: str, **fields: Any) -> "Future[InferResponse]":
        return self.bench.submit(request(name, **fields))[0]

    def about(self, name: str, **fields: Any) -> dict[str, Any]:
        response = self.ask(name, **fields).result(60)
        assert response.failure is None, response.failure
        return dict(response.parameters)

    def wrote(self, what: str) -> set[int]:
        return {int(name.removeprefix(what)) for name in os.listdir(self.folder) if name.startswith(what)}

    def hold(self, count: int) -> "list[Future[InferResponse]]":
        """Occupy so many instances, one request each, until `go`."""
        held = []
        for number in range(count):
            held.append(self.ask(f"hold {number}"))
            block_until(lambda number=number: len(self.wrote("held-")) == number + 1)  # type: ignore[misc]
        return held

    def go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def models(bench: Bench) -> Iterator[Models]:
    made = Models(bench)
    yield made
    made.go()
    (made.folder / "wait").unlink(missing_ok=True)


def test_each_of_four_sequences_has_an_instance_of_its_own(models: Models) -> None:
    models.load(group(4) + SEQUENCES)
    owners = {
        sequence: models.about("one", sequence_id=sequence, sequence_start=True)["pid"]
        for sequence in range(1, 5)
    }
    assert len({*owners.values()}) == 4 and os.getpid() not in owners.values()
    together = [models.ask("meet", sequence_id=sequence) for sequence in owners]
    answers = [answer.result(60) for answer in together]
    assert [answer.parameters["pid"] for answer in answers] == [*owners.values()], "all at the same time"


def test_instances_share_no_state_of_the_module(models: Models) -> None:
    models.load(group(2) + BATCHING)
    held = models.hold(2)
    models.go()
    assert [answer.result(60).parameters["done"] for answer in held] == [1, 1]


def test_batches_are_formed_over_all_instances(models: Models) -> None:
    models.load(group(4) + BATCHING)
    held = models.hold(4)
    waiting = [models.ask(f"w{number}") for number in range(8)]
    models.go()
    assert {answer.result(60).parameters["batch"] for answer in waiting} == {8}
    assert all(answer.result(60).failure is None for answer in held)


def test_an_instance_that_dies_fails_its_own_requests_only(models: Models) -> None:
    models.load(group(2) + BATCHING)
    (held,) = models.hold(1)
    (models.folder / "wait").touch()
    (victim,) = models.wrote("made-") - models.wrote("held-")
    failure = models.ask("die").result(60).failure
    assert failure is not None and failure.code is ErrorCode.UNAVAILABLE and UNHEALTHY in failure.message
    late = models.ask("late")
    models.go()
    (survivor,) = models.wrote("held-")
    # The other one is being started: it gets no request that would wait for it.
    assert (held.result(60).parameters["pid"], late.result(60).parameters["pid"]) == (survivor, survivor)
    assert [models.about(f"a{number}")["pid"] for number in range(4)] == [survivor] * 4
    (models.folder / "wait").unlink()
    (models.folder / "go").unlink()
    (models.folder / f"held-{survivor}").unlink()
    models.hold(2)
    assert survivor in models.wrote("held-") and victim not in models.wrote("held-")


def test_an_idle_instance_that_dies_gets_nothing_until_it_is_back(models: Models) -> None:
    model = models.load(group(2))
    first, second = models.wrote("made-")
    (models.folder / "wait").touch()
    os.kill(first, signal.SIGKILL)
    block_until(lambda: len(models.wrote("made-")) == 3, "it is started again")
    assert {models.about(f"a{number}")["pid"] for number in range(4)} == {second}
    assert model.instances.healthy and all(map(model.backend.instance_ready, model.instances.instances))


def test_sequences_of_an_instance_that_dies_are_told_so(models: Models) -> None:
    models.load(group(2) + SEQUENCES)
    owners = {n: models.about("one", sequence_id=n, sequence_start=True)["pid"] for n in (1, 2)}
    assert owners[1] != owners[2]
    held, queued = models.ask("hold", sequence_id=1), models.ask("queued", sequence_id=1)
    block_until(lambda: models.wrote("held-") == {owners[1]})
    os.kill(owners[1], signal.SIGKILL)
    failure, dropped = held.result(60).failure, queued.result(60).failure
    assert failure is not None and UNHEALTHY in failure.message
    assert dropped is not None and dropped.code is ErrorCode.UNAVAILABLE
    assert dropped.message.startswith("sequence 1 of model 'm' has ended: an instance of the model was lost")
    with pytest.raises(
        InferError, match=r"must specify the START flag .*: an instance of the model was lost"
    ):
        models.ask("lost", sequence_id=1)
    assert models.about("goes on", sequence_id=2)["pid"] == owners[2]
    assert models.about("again", sequence_id=1, sequence_start=True)["batch"] == 1


def update(models: Models, config: str) -> None:
    models.bench.control(UPDATE, text_format.Parse(PYTHON + config, mc.ModelConfig()).SerializeToString())


def test_instances_are_added_and_removed_while_the_model_serves(models: Models) -> None:
    model = models.load(group(1) + BATCHING)
    assert models.about("only")["pid"] == os.getpid(), "the replica executes the only instance"
    update(models, group(3) + BATCHING)
    models.hold(3)
    assert os.getpid() in models.wrote("held-"), "the first instance goes on"
    models.go()
    before = model.instances.instances
    update(models, group(1) + BATCHING)
    block_until(lambda: len(before) == 3 and sum(each.state is None for each in before) == 2, "two ended")
    assert models.about("one again")["pid"] == os.getpid()


def test_a_model_that_had_several_instances_keeps_a_process(models: Models) -> None:
    models.load(group(2))
    update(models, group(1))
    assert models.about("one")["pid"] in models.wrote("made-") - {os.getpid()}


def test_instances_end_at_the_same_time(models: Models) -> None:
    source = models.folder / "1" / "model.py"
    finalize = 'self.meet()\n        open(f"{self.folder}parted-{self.pid}", "w").close()'
    source.write_text(f"{MODEL}\n    def finalize(self):\n        {finalize}\n")
    model = models.load(group(4))
    processes = models.wrote("made-")
    model.close(timeout=30)
    models.bench.model = None
    assert models.wrote("parted-") == processes, "each waits for the others"


def test_a_process_has_the_host_policy_of_its_instance(models: Models) -> None:
    core = min(os.sched_getaffinity(0))
    models.load(group(2), host_policies={"cpu": {"cpu-cores": f"{core}-{core}"}})
    assert {*map(frozenset, map(os.sched_getaffinity, models.wrote("made-")))} == {frozenset({core})}


def test_metrics_of_all_instances_are_reported(models: Models) -> None:
    models.load(group(2))
    held = models.hold(2)
    models.go()
    assert all(answer.result(60).failure is None for answer in held)
    families = models.bench.report().custom
    assert [family.samples for family in families] == [[CustomSample({}, 1.0, 0, [], [])]] * 2


def test_instance_that_does_not_load_fails_the_load(models: Models) -> None:
    source = models.folder / "1" / "model.py"
    source.write_text(
        MODEL.replace("self.pid = ", 'assert args["model_instance_name"] != "g_1"; self.pid = ')
    )
    with pytest.raises(InferError, match="AssertionError"):
        models.load(group(3))


def test_processes_see_the_packages_and_variables_of_the_server(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = models.bench.directory / "packages"
    packages.mkdir()
    (packages / "only_of_this_test.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(packages))
    source = models.folder / "1" / "model.py"
    source.write_text("import msgspec, google.protobuf, nereid_client, only_of_this_test\n" + MODEL)
    models.load(group(2))
    assert models.about("a")["pid"] != os.getpid()


SHARE = 'parameters { key: "INSTANCES_SHARE_PROCESS" value { string_value: "true" } }\n'


def test_instances_share_a_process(models: Models) -> None:
    """With a thread and an object of the model for each, which execute at the same time."""
    models.load(group(3) + SHARE)
    (pid,) = models.wrote("made-")
    held = [models.ask(f"hold {number}") for number in range(2)]
    assert models.about("answer")["pid"] == pid, "the third executes beside two that hold"
    models.go()
    answers = [answer.result(60).parameters for answer in held]
    assert {answer["pid"] for answer in answers} == {pid}
    assert max(answer["done"] for answer in answers) == 3, "the module is one"
    (family,) = models.bench.report().custom
    assert family.samples == [CustomSample({}, 3.0, 0, [], [])], "counted once"


def test_a_shared_process_that_dies_is_started_again_for_all(models: Models) -> None:
    models.load(group(2) + SHARE)
    (first,) = models.wrote("made-")
    held = models.ask("hold 0")
    block_until(lambda: models.wrote("held-"))
    for failed in (models.ask("die").result(60), held.result(60)):
        assert failed.failure is not None and UNHEALTHY in failed.failure.message
    held = models.ask("hold 1")
    pid = models.about("answer")["pid"]
    models.go()
    assert held.result(60).parameters["pid"] == pid != first


def test_instances_are_added_to_a_shared_process_and_removed(models: Models) -> None:
    model = models.load(group(2) + SHARE)
    (pid,) = models.wrote("made-")
    for count in (4, 1):
        models.bench.control(UPDATE, models.bench.spec(PYTHON + group(count) + SHARE).config)
        block_until(lambda count=count: len(model.instances.instances) == count)  # type: ignore[misc]
        assert models.about("answer")["pid"] == pid
