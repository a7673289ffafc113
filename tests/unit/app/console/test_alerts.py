"""Alerts out of samples at several times."""

from typing import Any

from app.console.alerts import Alerts
from app.core.observability.counters import VersionCounters


def said(alerts: Alerts, at: float) -> list[str]:
    return [alert["what"] for alert in alerts.found(at)]


def dropped(value: int, reason: str = "space") -> dict[str, Any]:
    return {"nereid_tape_dropped": [{"reason": reason, "value": value}]}


def test_a_counter_that_grows_is_told_for_as_long_as_its_rule_looks_back() -> None:
    alerts = Alerts()
    alerts.add(0.0, dropped(5), "a")
    assert said(alerts, 0.0) == []  # since when is not known
    alerts.add(10.0, dropped(6), "a")
    assert said(alerts, 10.0) == ["The tape lacks requests: space"]
    for second in range(20, 700, 10):
        alerts.add(float(second), dropped(6), "a")
    assert said(alerts, 700.0) == []


def test_what_another_process_has_counted_is_no_growth() -> None:
    alerts = Alerts()
    for second in range(0, 60, 10):
        alerts.add(float(second), dropped(second % 20), "ab"[second % 20 // 10])
    assert said(alerts, 60.0) == []


def test_a_process_that_begins_anew_counts_from_zero() -> None:
    alerts = Alerts()
    alerts.add(0.0, dropped(9), "a")
    alerts.add(10.0, dropped(2), "a")
    assert said(alerts, 10.0) == []


def test_what_is_gone_or_rests_is_told_no_longer_than_its_rule_looks_back() -> None:
    alerts = Alerts()
    for second in (0.0, 10.0):
        alerts.add(second, dropped(int(second)), "a")
        alerts.add_counters(second, "m", "1", VersionCounters(second, failed=int(second)))
    assert len(said(alerts, 20.0)) == 2
    for second in range(20, 700, 10):
        alerts.stand(float(second))
    assert said(alerts, 700.0) == []
    alerts.add(2000.0, dropped(0), "b")
    alerts.found(2000.0)
    assert len(alerts._series["nereid_tape_dropped"]) == 1  # of processes that are gone nothing piles up


def test_what_begins_after_a_rest_is_told() -> None:
    alerts = Alerts()
    alerts.add_counters(0.0, "m", "1", VersionCounters(0.0))
    for second in range(10, 3600, 10):
        alerts.stand(float(second))
    alerts.add_counters(3600.0, "m", "1", VersionCounters(3600.0, restarts=3))
    assert said(alerts, 3600.0) == ["m 1: replicas end unexpectedly"]


def test_labels_choose_what_counts() -> None:
    alerts = Alerts()
    alerts.add(0.0, dropped(0, "rate_limit"))
    alerts.add(10.0, dropped(9, "rate_limit"))
    assert said(alerts, 10.0) == []


def test_a_state_is_told_while_it_is_reported() -> None:
    alerts = Alerts()
    alerts.add(0.0, {"nereid_rollout_state": [{"model": "m", "version": "2", "state": "paused", "value": 1}]})
    (found,) = alerts.found(5.0)
    assert (found["what"], found["page"], found["model"]) == ("m: the rollout is paused", "rollout", "m")
    assert said(alerts, 60.0) == []


def test_failures_are_a_share_without_those_of_clients_that_left() -> None:
    alerts = Alerts()
    alerts.add_counters(0.0, "m", "1", VersionCounters(0.0))
    alerts.add_counters(60.0, "m", "1", VersionCounters(60.0, ok=90, failed=50, cancelled=46))
    assert said(alerts, 60.0) == []
    alerts.add_counters(90.0, "m", "1", VersionCounters(90.0, ok=90, failed=60, cancelled=46))
    assert said(alerts, 90.0) == ["m 1: more than 5 % of the requests fail"]


def test_the_worst_come_first_and_versions_that_are_gone_are_forgotten() -> None:
    alerts = Alerts()
    alerts.add(0.0, {"nereid_drift_alarm": [{"model": "a", "version": "1", "value": 1}]})
    alerts.add_counters(0.0, "m", "1", VersionCounters(0.0))
    alerts.add_counters(1.0, "m", "1", VersionCounters(1.0, restarts=3))
    assert said(alerts, 1.0) == ["m 1: replicas end unexpectedly", "a 1: requests do not look as they did"]
    alerts.forget({("a", "1")})
    assert said(alerts, 1.0) == ["a 1: requests do not look as they did"]


def test_memory_is_a_share_of_each_device() -> None:
    alerts = Alerts()
    used = [{"gpu_uuid": "one", "value": 95}, {"gpu_uuid": "two", "value": 80}]
    total = [{"gpu_uuid": name, "value": 100} for name in ("one", "two")]
    alerts.add(0.0, {"nv_gpu_memory_used_bytes": used, "nv_gpu_memory_total_bytes": total})
    assert said(alerts, 0.0) == ["GPU one: more than 90 % of the memory is used"]


def waiting(alerts: Alerts, at: float, pending: int) -> None:
    alerts.add_counters(at, "m", "1", VersionCounters(at, pending=pending))


def test_a_queue_grows_if_more_wait_at_each_moment_than_ten_minutes_ago() -> None:
    alerts = Alerts()
    for second in range(0, 600, 10):
        waiting(alerts, float(second), second // 10)
        assert said(alerts, float(second)) == []  # what was before is not known yet
    waiting(alerts, 600.0, 60)
    assert said(alerts, 600.0) == ["m 1: more and more requests wait"]
    waiting(alerts, 610.0, 0)  # for a moment
    assert said(alerts, 610.0) == []


def test_a_queue_that_is_long_and_stays_so_does_not_grow() -> None:
    alerts = Alerts()
    for second in range(0, 1200, 10):
        waiting(alerts, float(second), 90 + second % 30)
    assert said(alerts, 1200.0) == []


def test_requests_that_wait_are_told_beside_what_they_compute() -> None:
    alerts = Alerts()
    begun = {"short": (0.009, 0.001), "long": (0.021, 0.01), "balanced": (0.019, 0.01)}
    for second in (0, 100):
        for name, (queue_s, compute_s) in begun.items():
            queue, compute = (int(mean * second * 1e9) for mean in (queue_s, compute_s))
            counters = VersionCounters(float(second), ok=second, queue_ns=queue, compute_ns=compute)
            alerts.add_counters(float(second), name, "1", counters)
    assert said(alerts, 100.0) == ["long 1: requests wait more than twice as long as they are computed"]


def test_a_certificate_is_told_two_weeks_before_it_ends_whoever_reports_it() -> None:
    alerts, day = Alerts(), 86400.0
    for process in "ab":
        ends = [("http", 13 * day), ("grpc", 15 * day)]
        told = [{"front": front, "value": 1000.0 + end} for front, end in ends]
        alerts.add(1000.0, {"nereid_certificate_expiry_timestamp_seconds": told}, process)
    assert said(alerts, 1000.0) == ["The http certificate expires within 14 days"]


def test_the_first_failure_of_a_model_is_told() -> None:
    alerts = Alerts()
    alerts.add(0.0, {}, "a")
    alerts.add(10.0, {"nereid_rollout_failure": [{"model": "m", "value": 1}]}, "a")
    assert said(alerts, 10.0) == ["m: a rollout failed"]
    alerts.add(
        20.0, {"nereid_rollout_failure": [{"model": "m", "value": 1}]}, "b"
    )  # long ago, for all it knows
    assert said(alerts, 920.0) == []
