"""What a client makes of a replica's silence."""

import asyncio
import os
import signal

import pytest

from app.core.errors import ErrorCode
from app.core.tensors import InferResponse
from app.transport.channel.client import Channel
from app.transport.channel.heartbeat import Silence, is_suspect
from app.transport.settings import TransportSettings
from tests.unit.app.transport.conftest import KEY, ReplicaProcess, make_request
from tests.waiting import until

FAST = TransportSettings(heartbeat=0.05, peer_timeout=60.0)


class Changes:
    """What a channel said whenever its readiness changed."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, str]] = []

    def __call__(self, channel: Channel) -> None:
        self.seen.append((channel.ready, channel.suspected))


def beats(silence: Silence, times: list[float], unparsed: int = 0, unsent: int = 0) -> list[float]:
    return [round(silence.at_beat(now, unparsed, unsent), 3) for now in times]


def test_silence_lasts_since_the_last_answer() -> None:
    silence = Silence(1.0, 0.0)
    silence.heard(0.01)
    assert beats(silence, [1.0, 2.0, 3.0]) == [0.99, 1.99, 2.99]
    silence.heard(3.5)
    assert beats(silence, [4.0]) == [0.5]


def test_a_replica_is_suspected_at_the_third_heartbeat_without_an_answer() -> None:
    assert [is_suspect(each, 1.0) for each in (0.99, 1.99, 2.99)] == [False, False, True]
    assert [is_suspect(each, 0.2) for each in (0.39, 0.59)] == [False, True]


def test_time_in_which_the_client_itself_was_busy_does_not_count() -> None:
    silence = Silence(1.0, 0.0)
    assert beats(silence, [1.0, 6.0]) == [1.0, 2.0]
    silence.heard(6.1)
    assert beats(silence, [9.0]) == [0.9]  # late by 2


def test_a_frame_that_grows_is_a_sign_of_life() -> None:
    silence = Silence(1.0, 0.0)
    assert [silence.at_beat(now, size, 0) for now, size in ((1.0, 10), (2.0, 20), (3.0, 20))] == [0, 0, 1]


def test_only_a_send_buffer_that_shrinks_is_a_sign_of_life() -> None:
    silence = Silence(1.0, 0.0)
    assert [silence.at_beat(now, 0, size) for now, size in ((1.0, 9), (2.0, 99), (3.0, 98))] == [1, 2, 0]


async def test_a_stopped_replica_is_suspected_and_its_requests_fail(replica: ReplicaProcess) -> None:
    changes, answers = Changes(), list[InferResponse]()
    channel = await Channel.connect(replica.addresses["unix"], KEY, FAST, on_readiness=changes)
    channel.send(make_request(model="hold"), answers.append)
    os.kill(replica.child.pid, signal.SIGSTOP)
    await until(lambda: channel.suspected)
    assert channel.unreachable and not channel.ready
    await until(lambda: answers)
    assert answers[0].failure is not None and answers[0].failure.code is ErrorCode.UNAVAILABLE
    assert f"its process {replica.child.pid} is stopped" in answers[0].failure.message
    os.kill(replica.child.pid, signal.SIGCONT)
    await until(lambda: channel.ready)
    assert not channel.suspected and not channel.unreachable
    assert changes.seen[0][0] is False and changes.seen[-1] == (True, "")
    channel.close()
    await until(lambda: channel.closed)


async def test_a_busy_replica_is_suspected_and_keeps_its_requests(
    replica: ReplicaProcess, scheme: str
) -> None:
    answers = list[InferResponse]()
    channel = await Channel.connect(replica.addresses[scheme], KEY, FAST)
    channel.send(make_request(model="busy"), answers.append)
    await until(lambda: channel.suspected)
    assert not channel.ready and not channel.unreachable and not answers
    replica.release()
    await until(lambda: answers)
    assert answers[0].failure is None
    await until(lambda: channel.ready)
    channel.close()
    await until(lambda: channel.closed)


async def test_requests_of_a_replica_that_is_busy_for_too_long_fail(replica: ReplicaProcess) -> None:
    answers = list[InferResponse]()
    settings = TransportSettings(heartbeat=0.05, peer_timeout=0.3)
    channel = await Channel.connect(replica.addresses["unix"], KEY, settings)
    channel.send(make_request(model="busy"), answers.append)
    await until(lambda: answers)
    assert answers[0].failure is not None and "no answer for" in answers[0].failure.message
    replica.release()
    await until(lambda: channel.ready)  # it is used again
    channel.close()
    await until(lambda: channel.closed)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_signal_that_killed_a_replica_is_named(
    replica: ReplicaProcess, number: signal.Signals
) -> None:
    answers = list[InferResponse]()
    channel = await Channel.connect(replica.addresses["unix"], KEY)
    channel.send(make_request(model="hold"), answers.append)
    await asyncio.sleep(0)
    os.kill(replica.child.pid, number)
    await until(lambda: answers)
    assert answers[0].failure is not None
    text = f"its process {replica.child.pid} was killed by signal {number.value} ({number.name})"
    assert answers[0].failure.message == f"connection to model replica lost: {text}"
    await until(lambda: channel.closed)
