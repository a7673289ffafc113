"""What an ingress says and does about faults of the cluster."""

import logging
from typing import cast

import pytest

from app.dispatch.router import Router
from app.ingress.cluster_report import ClusterReport
from app.ingress.service.routed import RoutedInferenceService
from tests.unit.app.routing_fakes import SETTINGS, FakeRepository, FakeRouter, entry

_FAULT = "the repository manager has ended"


@pytest.fixture
def service(caplog: pytest.LogCaptureFixture) -> RoutedInferenceService:
    caplog.set_level(logging.INFO, "app.ingress.cluster_report")
    return RoutedInferenceService(SETTINGS, cast(Router, FakeRouter(entry("m"))), FakeRepository())


def test_a_fault_makes_the_server_not_ready_until_it_is_over(
    service: RoutedInferenceService, caplog: pytest.LogCaptureFixture
) -> None:
    report = ClusterReport(service)
    report.unready(_FAULT)
    assert not service.ready()
    report.unready("")
    assert service.ready()
    assert caplog.messages == [f"not ready: {_FAULT}", "ready again"]


def test_a_distant_fault_leaves_the_server_ready(
    service: RoutedInferenceService, caplog: pytest.LogCaptureFixture
) -> None:
    report = ClusterReport(service)
    report.degraded(_FAULT)
    report.degraded("")
    assert service.ready()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_server_that_stops_does_not_complain_that_its_parts_end(
    service: RoutedInferenceService, caplog: pytest.LogCaptureFixture
) -> None:
    report = ClusterReport(service)
    service.begin_exit()
    report.unready(_FAULT)
    report.degraded(_FAULT)
    assert not caplog.messages
