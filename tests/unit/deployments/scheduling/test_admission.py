"""Admission under overload: pure decisions, and simulations of a model by a clock of their own."""

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, FailureReason
from app.core.observability.statistics import MovingMean
from app.protocol.status import grpc_status, http_status
from backends.python.api.errors import TritonError
from deployments.scheduling.admission import Admission, Patience
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies
from tests.unit.deployments.scheduling.overload_simulation import MANY, Clients, S, Simulation
from tests.unit.scheduling_fakes import Answers, pending

PRIORITIES = QueuePolicies.from_config(mc.ModelDynamicBatching(priority_levels=2, default_priority_level=2))
MODELS: dict[str, dict[str, Any]] = {
    "one instance": {},
    "batches": {"batch": 4, "execution_s": 0.08},
    "four instances": {"instances": 4, "execution_s": 0.08},
    "priorities": {
        "make_queue": lambda admission: PolicyQueue(MANY, MANY, PRIORITIES, admission.clock, admission)
    },
    "short executions": {"execution_s": 0.005},
}
CLIENTS = {
    "deadline": Clients(deadline=True),
    "timeout": Clients(timeout=True),
    "silent": Clients(),
}


@pytest.mark.parametrize("load", [3.0, 10.0])
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("model", MODELS)
def test_goodput_stays_at_the_capacity_under_overload(model: str, clients: str, load: float) -> None:
    if (model, clients) == ("priorities", "timeout"):
        pytest.skip("there Triton's queue policies decide about timeouts")
    simulation = Simulation(**MODELS[model])
    outcome = simulation.run(load, 10, CLIENTS[clients])
    assert outcome.in_time > 0.9 * 10 * simulation.capacity
    assert outcome.refused > 0.8 * (outcome.sent - outcome.in_time), "others learn of it at once"
    again = simulation.run(load, 4, CLIENTS[clients])
    assert again.in_time > 0.95 * 4 * simulation.capacity
    assert again.longest_queue <= 1.1 * simulation.capacity, "once it is learned how long clients wait"


@pytest.mark.parametrize("clients", CLIENTS)
def test_nobody_is_refused_below_the_capacity(clients: str) -> None:
    simulation = Simulation(instances=4, execution_s=0.08)
    outcome = simulation.run(0.8, 60, CLIENTS[clients])
    assert outcome.refused == 0 and not simulation.left


def test_first_come_first_served_alone_fails_silent_clients() -> None:
    simulation = Simulation(learns=False)
    outcome = simulation.run(3, 20)
    assert outcome.in_time < 0.2 * 20 * simulation.capacity


def test_less_patient_clients_among_others_do_not_lower_goodput() -> None:
    simulation = Simulation()
    for _ in range(20):
        simulation.run(1.5, 0.5, Clients(wait_s=0.3))
        simulation.run(1.5, 0.5, Clients(wait_s=2))
    before = len(simulation.answered)
    for _ in range(20):
        simulation.run(1.5, 0.5, Clients(wait_s=0.3))
        simulation.run(1.5, 0.5, Clients(wait_s=2))
    assert len(simulation.answered) - before > 0.9 * 20 * simulation.capacity


def test_clients_that_never_leave_may_queue_without_limit() -> None:
    simulation = Simulation()
    outcome = simulation.run(10, 15, Clients(wait_s=1e6))
    assert outcome.refused == 0 and outcome.longest_queue > 8 * 15 * simulation.capacity


def test_client_that_cancels_all_its_requests_at_once_changes_nothing_for_others() -> None:
    simulation = Simulation()
    simulation.run(10, 4, Clients(wait_s=1e6))
    requests = list(simulation.waiting)
    for request in requests[::2]:
        simulation.leave(request)
    outcome = simulation.run(3, 4, Clients(wait_s=1e6))
    assert len(simulation.left) > 500
    assert outcome.refused == 0


def test_patience_is_forgotten_when_nobody_leaves() -> None:
    simulation = Simulation()
    assert simulation.run(3, 10).refused > 0
    simulation.run(0.5, 35)
    assert simulation.run(10, 10, Clients(wait_s=1e6)).refused == 0


def test_goodput_recovers_from_a_first_execution_that_was_slow() -> None:
    for clients in CLIENTS.values():
        simulation = Simulation(batch=4, execution_s=0.08)
        simulation.admission.execution_ns.add(20 * S)
        simulation.run(3, 5, clients)
        assert simulation.run(3, 5, clients).in_time > 0.9 * 5 * simulation.capacity


def test_moving_mean_forgets_its_first_value() -> None:
    mean = MovingMean()
    mean.add(1000)
    assert mean.value == 1000
    mean.add(10)
    assert mean.value == 10
    mean.add(20)
    assert mean.value == 15


def test_moving_mean_is_hardly_moved_by_one_interrupted_execution() -> None:
    mean = MovingMean()
    for _ in range(20):
        mean.add(0.1 * S)
    mean.add(100 * S)
    assert 0.1 * S < mean.value < 0.13 * S
    for _ in range(20):
        mean.add(100 * S)
    assert mean.value > S, "but by many"


class TestAdmission:
    """Decisions with an execution of 0.1 s."""

    @pytest.fixture
    def answers(self) -> Answers:
        return Answers()

    def admission(self, **arguments: Any) -> Admission:
        self.now = 5 * S
        made = Admission(**arguments, clock=lambda: self.now)
        made.instances = 1
        made.execution_ns.add(0.1 * S)
        return made

    def test_wait_counts_whole_batches_and_instances(self) -> None:
        admission = self.admission(batch=4)
        assert admission.wait_ns(0) == 0
        assert admission.wait_ns(3) == 0.05 * S
        assert admission.wait_ns(8) == 0.25 * S
        admission.instances = 5
        assert admission.wait_ns(8) == 0.05 * S

    def test_wait_is_unknown_before_the_first_execution(self) -> None:
        assert Admission().wait_ns(100) == 0

    def test_refusal_tells_when_to_retry(self, answers: Answers) -> None:
        admission = self.admission()
        request = pending(answers, "r", deadline=6.0)
        request.arrival_ns = self.now
        assert admission.refusal(request, int(0.64 * S)) is None
        failure = admission.refusal(request, int(0.66 * S))
        assert failure is not None and failure.retry_after_s == 0.66
        assert (failure.code, failure.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
        assert failure.message == (
            "[request id: r] model 'm' is overloaded: the wait in its queue is 0.66 s, and the execution then"
            " 0.1 s, too long for the 1 s that are left"
        )
        assert admission.refused == {"deadline": 1}

    def test_deadline_shorter_than_an_execution_is_exceeded_by_no_overload(self, answers: Answers) -> None:
        admission = self.admission()
        for request, refused in ((pending(answers, "r", deadline=5.1), True), (pending(answers, "r"), False)):
            request.arrival_ns = self.now
            failure = admission.refusal(request, int(0.05 * S))
            assert (failure is not None) == refused
        request = pending(answers, "r", deadline=5.1)
        request.arrival_ns = self.now
        failure = admission.refusal(request, int(0.05 * S))
        assert failure is not None and failure.retry_after_s == 0.05
        assert (failure.code, failure.reason) == (ErrorCode.DEADLINE_EXCEEDED, FailureReason.REJECTED)
        assert failure.message == (
            "Deadline Exceeded: [request id: r] model 'm' takes 0.1 s to execute a request, too long for a "
            "deadline of 0.1 s"
        )
        assert (grpc_status(failure), http_status(failure)) == (4, 504)
        assert TritonError._from_failure(failure).code() == TritonError.UNAVAILABLE

    def test_bound_in_seconds_holds_for_every_request(self, answers: Answers) -> None:
        admission = self.admission(max_wait_s=2.0)
        for request in (pending(answers, "r"), pending(answers, "r", deadline=1e6)):
            assert admission.refusal(request, 2 * S) is None
            assert admission.refusal(request, 2 * S + 1) is not None
        assert admission.refused == {"max_queue": 2}

    def test_late_request_is_dropped_unless_it_is_the_last(self, answers: Answers) -> None:
        admission = self.admission()
        request = pending(answers, "r", deadline=6.0)
        request.arrival_ns = self.now
        self.now += int(0.79 * S)
        assert admission.lateness(request, ahead=1) is None
        self.now += int(0.02 * S)
        assert admission.lateness(request, ahead=1) is not None
        assert admission.lateness(request, ahead=0) is None

    def test_client_that_leaves_at_its_own_deadline_tells_nothing(self, answers: Answers) -> None:
        admission = self.admission()
        for number in range(100):
            request = pending(answers, str(number), deadline=self.now / S + 1)
            request.arrival_ns = self.now
            self.now += S
            admission.record_departure(request, 0)
        assert not admission.is_learned

    @pytest.mark.parametrize(("execution_s", "waited_s"), [(0.1, 0.12), (1e-5, 0.009)])
    def test_client_that_leaves_before_it_could_have_an_answer_tells_nothing(
        self, answers: Answers, execution_s: float, waited_s: float
    ) -> None:
        admission = self.admission()
        for _ in range(20):
            admission.execution_ns.add(execution_s * S)
        for number in range(300):
            request = pending(answers, str(number))
            request.arrival_ns = self.now
            self.now += int(waited_s * S)
            admission.record_departure(request, 0)
        assert not admission.is_learned
        assert admission.refusal(request, 10 * S) is None

    def test_departures_are_not_learned_from_if_so_configured(self, answers: Answers) -> None:
        for learns in (False, True):
            admission = self.admission(learns=learns)
            for number in range(100):
                request = pending(answers, str(number))
                request.arrival_ns = self.now
                self.now += S
                admission.record_departure(request, 0)
            assert admission.is_learned == learns


class TestPatience:
    def test_it_is_known_once_most_clients_leave_for_a_while(self) -> None:
        patience = Patience()
        for step in range(13):
            patience.record_departure(S, 0, step * S // 100)
            assert patience.limit_ns(step * S // 100) == 0, "it may be a moment"
        for step in range(13, 30):
            patience.record_departure(S, 0, step * S // 100)
        assert patience.limit_ns(29 * S // 100) == pytest.approx(S, rel=0.01)

    def test_a_few_that_leave_among_many_answered_are_normal(self) -> None:
        patience = Patience()
        for step in range(1000):
            patience.record_departure(S, 3 * step, step * S // 10)
        assert patience.limit_ns(100 * S) == 0

    def test_it_grows_until_clients_leave_again_and_is_forgotten_at_last(self) -> None:
        patience = Patience()
        for step in range(100):
            patience.record_departure(S, 0, step * S // 100)
        began = S
        grown = [patience.limit_ns(began + seconds * S) / S for seconds in (0, 10, 20, 29, 31)]
        assert grown == [pytest.approx(value, rel=0.01) for value in (1, 1.10, 1.22, 1.33, 0)]
        patience.record_departure(S, 100, began + 20 * S)
        assert not patience.known, "it starts again"
