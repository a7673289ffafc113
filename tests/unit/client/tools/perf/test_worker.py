"""The process of a generator."""

import signal

import pytest

from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.job import Endpoint, Job
from nereid_client.tools.perf.generator.worker import NoConnection, Workers
from tests.server import free_port


def test_ctrl_c_of_the_terminal_leaves_the_generators_to_the_command() -> None:
    endpoint = Endpoint("http", "127.0.0.1", free_port(), "/")
    job = Job(endpoint, (http_request(endpoint, {}, b""),), concurrency=1)
    with Workers(1) as workers:
        with pytest.raises(NoConnection):  # it runs
            workers.begin([job])
        workers._processes[0].send_signal(signal.SIGINT)
        with pytest.raises(NoConnection):  # and still does
            workers.begin([job])
