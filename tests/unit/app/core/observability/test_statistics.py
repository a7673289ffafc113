"""The live counters of a model version in one process."""

import time

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import FailureReason
from app.core.observability.latencies import Histogram
from app.core.observability.statistics import BatchDurations, Duration, ReplicaReport, Statistics

DECOUPLED = "model_transaction_policy { decoupled: true }"
BOUNDS = """
model_metrics { metric_control {
  metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ 1, 2.5 ] }
} }
"""


def config(text: str = "") -> mc.ModelConfig:
    return text_format.Parse(text, mc.ModelConfig(name="m"))


def test_new_statistics_are_zero() -> None:
    assert Statistics().report() == ReplicaReport()


def test_each_request_of_a_batch_is_charged_the_whole_batch() -> None:
    statistics = Statistics()
    statistics.record_execution(rows=4, requests=2, input_ns=10, infer_ns=100, output_ns=1)
    statistics.record_execution(rows=4, requests=4, input_ns=10, infer_ns=100, output_ns=1)
    statistics.record_execution(rows=1, requests=1, input_ns=5, infer_ns=50, output_ns=2)
    report = statistics.report()
    assert (report.inference_count, report.execution_count) == (9, 3)
    assert report.compute_input == Duration(7, 65)
    assert report.compute_infer == Duration(7, 650)
    assert report.compute_output == Duration(7, 8)
    assert report.batches == {
        1: BatchDurations(Duration(1, 5), Duration(1, 50), Duration(1, 2)),
        4: BatchDurations(Duration(2, 20), Duration(2, 200), Duration(2, 2)),
    }


def test_requests_are_counted_by_outcome() -> None:
    statistics = Statistics()
    statistics.record_success(total_ns=100, queue_ns=30)
    statistics.record_success(total_ns=50, queue_ns=20)
    for reason in (FailureReason.BACKEND, FailureReason.REJECTED, FailureReason.BACKEND):
        statistics.record_failure(7, reason)
    report = statistics.report()
    assert (report.success, report.queue, report.fail) == (Duration(2, 150), Duration(2, 50), Duration(3, 21))
    assert report.failures == {"BACKEND": 2, "REJECTED": 1}


def test_releases_are_counted_by_reason() -> None:
    statistics = Statistics()
    for reason in ("full", "idle", "full"):
        statistics.record_release(reason)
    assert statistics.report().releases == {"full": 2, "idle": 1}


def test_last_inference_is_a_time_of_the_epoch() -> None:
    statistics = Statistics()
    before = time.time_ns()
    statistics.record_execution(1, 1, 0, 0, 0)
    assert before <= statistics.report().last_inference_ns <= time.time_ns()


def test_the_only_response_of_a_request_is_its_first() -> None:
    statistics = Statistics.for_model(config(BOUNDS), False, True)
    assert not statistics.times_first, "nobody need time what the durations tell"
    for ms in (1, 2, 7):
        statistics.record_success(ms * 1_000_000, queue_ns=0)
        statistics.record_first_response(ms * 1_000_000)
    expected = Histogram((1.0, 2.5), [1, 1, 1], 10.0)
    assert statistics.report().first_response == expected == statistics.report().first_response


def test_decoupled_models_time_first_responses() -> None:
    assert Statistics.for_model(config(), False, False).report().first_response is None
    assert Statistics.for_model(config(DECOUPLED), False, False).report().first_response is None
    statistics = Statistics.for_model(config(DECOUPLED + BOUNDS), False, True)
    for ms in (1, 2, 7):
        statistics.record_first_response(ms * 1_000_000)
    assert statistics.report().first_response == Histogram((1.0, 2.5), [1, 1, 1], 10.0)
