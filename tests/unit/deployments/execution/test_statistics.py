"""Counters of a replica, as the statistics extension shows them."""

import time

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import FailureReason
from deployments.execution.statistics import Statistics


def test_new_replica_has_counted_nothing() -> None:
    message = Statistics("m", "2").message()
    assert (message.name, message.version, message.last_inference) == ("m", "2", 0)
    assert list(message.batch_stats) == []
    names = [field.name for field in pb.InferStatistics.DESCRIPTOR.fields]
    assert message.inference_stats == pb.InferStatistics(**{name: {} for name in names})


def test_each_request_of_a_batch_is_charged_the_whole_batch() -> None:
    statistics = Statistics("m", "1")
    statistics.record_execution(rows=4, requests=2, input_ns=10, infer_ns=100, output_ns=1)
    statistics.record_execution(rows=4, requests=4, input_ns=10, infer_ns=100, output_ns=1)
    statistics.record_execution(rows=1, requests=1, input_ns=5, infer_ns=50, output_ns=2)
    message = statistics.message()
    assert (message.inference_count, message.execution_count) == (9, 3)
    stats = message.inference_stats
    assert (stats.compute_input.count, stats.compute_input.ns) == (7, 65)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (7, 650)
    assert (stats.compute_output.count, stats.compute_output.ns) == (7, 8)
    one, four = message.batch_stats
    assert (one.batch_size, one.compute_infer.count, one.compute_infer.ns) == (1, 1, 50)
    assert (four.batch_size, four.compute_infer.count, four.compute_infer.ns) == (4, 2, 200)
    assert (four.compute_input.ns, four.compute_output.ns) == (20, 2)


def test_requests() -> None:
    statistics = Statistics("m", "1")
    statistics.record_success(total_ns=100, queue_ns=30)
    statistics.record_success(total_ns=50, queue_ns=20)
    for reason in (FailureReason.BACKEND, FailureReason.REJECTED, FailureReason.BACKEND):
        statistics.record_failure(7, reason)
    stats = statistics.message().inference_stats
    assert (stats.success.count, stats.success.ns) == (2, 150)
    assert (stats.queue.count, stats.queue.ns) == (2, 50)
    assert (stats.fail.count, stats.fail.ns) == (3, 21)
    assert statistics.failures == {FailureReason.BACKEND: 2, FailureReason.REJECTED: 1}


def test_last_inference_is_milliseconds_of_the_epoch() -> None:
    statistics = Statistics("m", "1")
    before = time.time_ns() // 1_000_000
    statistics.record_execution(1, 1, 0, 0, 0)
    assert before <= statistics.message().last_inference <= time.time_ns() // 1_000_000
