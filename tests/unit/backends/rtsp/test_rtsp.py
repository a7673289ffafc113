"""Streams of an RTSP server: lost and found again, cancelled, redirected, silent."""

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from backends.rtsp.policy import Endpoint
from backends.rtsp.relay import Connection
from tests.certificates import Authority
from tests.rtsp_server import Answer, RtspServer
from tests.unit.backends.rtsp.conftest import FRAMES, PATIENT_S, Serve, failure, values
from tests.video import joined, picture, rtp_packets
from tests.waiting import block_until


def test_complete_streams_have_every_frame(serve: Serve, packets: list[bytes]) -> None:
    with RtspServer(packets) as server:
        call = serve().start(server.url, mode="complete")
        assert values(call, "INDEX") == list(range(FRAMES))
    np.testing.assert_allclose(values(call, "PTS"), np.arange(FRAMES) * 1e6 / 30, atol=40_001)
    for index, frame in enumerate(values(call, "FRAME")):
        assert np.abs(frame.astype(int) - picture(index, 320, 180)).mean() < 3, index
    assert [line.split()[0] for line in server.requests][:4] == ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"]


def test_streams_of_rtsp_are_live(serve: Serve, packets: list[bytes]) -> None:
    with RtspServer(packets, holds=True) as server:
        cameras = serve(frames_in_flight="1")
        call = cameras.start(server.url)
        block_until(lambda: cameras.served.model.state.streams[0]._queue.dropped > 5)
        call.cancelled = True
        call.wait()


def test_a_lost_stream_is_opened_again_and_its_times_go_on(serve: Serve, packets: list[bytes]) -> None:
    cameras = serve(reconnect_pause_s="0.05")
    with RtspServer(packets, speed=20) as server:
        call = cameras.start(server.url, FRAMES=2 * FRAMES - 10)
        indices, times = values(call, "INDEX"), values(call, "PTS")
        assert server.played >= 2
    assert indices == sorted(set(indices))
    assert times == sorted(times)
    assert cameras.metric("rtsp_reconnects") >= 1
    gap = max(np.diff(times))
    assert 50_000 <= gap < 10_000_000


def test_a_stream_that_stays_lost_ends_with_the_reason(serve: Serve, packets: list[bytes]) -> None:
    with RtspServer(packets, holds=True) as server:
        call = serve(reconnect_pause_s="0.01", reconnect_attempts="2").start(server.url)
        block_until(lambda: len(call.responses) > 1)
    text = failure(call)
    assert text.startswith(f"'{server.url}' was lost, and 2 attempts to open it again failed: ")
    assert "Connection refused" in text


def test_a_stream_that_was_never_there_fails_at_once(serve: Serve, packets: list[bytes]) -> None:
    with RtspServer(packets) as server:
        pass
    assert failure(serve().start(server.url)) == f"'{server.url}': Connection refused"


def test_cancelling_closes_the_connection_at_once(serve: Serve, packets: list[bytes]) -> None:
    cameras = serve(read_timeout_s=PATIENT_S)
    with RtspServer(packets, holds=True) as server:
        call = cameras.start(server.url)
        # Until the server has no more, and the decoder waits for it.
        block_until(lambda: call.responses and call.responses[-1].outputs[2].array()[0] >= FRAMES - 3)
        call.cancelled = True
        call.wait()
        block_until(lambda: not server.clients)
    assert cameras.streams() == 0


def test_a_server_that_says_nothing_is_given_up(serve: Serve) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/x"
        assert failure(serve(read_timeout_s="0.2").start(url)) == f"'{url}' sent nothing for 0.2 s"


def test_a_stream_that_falls_silent_is_given_up(serve: Serve, packets: list[bytes]) -> None:
    with RtspServer(packets, holds=True) as server:
        cameras = serve(read_timeout_s="0.3")
        text = failure(cameras.start(server.url, mode="complete"))
    assert text == f"'{server.url}' sent nothing for 0.3 s"


@pytest.mark.parametrize("scheme", ["rtsp", "rtsps"])
def test_opening_a_silent_server_can_be_cancelled(serve: Serve, scheme: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        patient = serve(open_timeout_s=PATIENT_S, read_timeout_s=PATIENT_S)
        call = patient.start(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/x")
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)  # it has begun to ask
            call.cancelled = True
            call.wait()
            while connection.recv(4096):  # until it is closed
                pass


@pytest.mark.parametrize("method", ["OPTIONS", "DESCRIBE", "SETUP"])
@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "305 Use Proxy"])
def test_redirects_are_not_followed(serve: Serve, packets: list[bytes], method: str, status: str) -> None:
    with RtspServer(packets) as target:

        def redirect(asked: str, headers: Mapping[str, str]) -> Answer | None:
            return (status, {"Location": target.url}, b"") if asked == method else None

        with RtspServer(packets, override=redirect) as server:
            assert server.url in failure(serve().start(server.url, mode="complete"))
        assert target.requests == [] and target.clients == 0


@pytest.mark.parametrize("option", ["udp", "http", "https", "multicast", "filter_src"])
def test_options_in_the_address_change_nothing(serve: Serve, packets: list[bytes], option: str) -> None:
    with RtspServer(packets) as server:
        call = serve().start(f"{server.url}?{option}", mode="complete")
        last = call.wait()[-1]
        assert last.failure is not None or len(call.responses) == FRAMES + 1
        assert all("interleaved" in line or not line.startswith("Transport") for line in server.requests)


def test_user_name_and_password_reach_the_server_and_no_message(serve: Serve, packets: list[bytes]) -> None:
    expected = "Basic " + base64.b64encode(b"me:secret").decode()

    def guard(method: str, headers: Mapping[str, str]) -> Answer | None:
        if method == "OPTIONS" or headers.get("authorization") == expected:
            return None
        return "401 Unauthorized", {"WWW-Authenticate": 'Basic realm="camera"'}, b""

    with RtspServer(packets, override=guard) as server:
        cameras = serve()
        good = server.url.replace("rtsp://", "rtsp://me:secret@")
        assert len(values(cameras.start(good, mode="complete"), "INDEX")) == FRAMES
        text = failure(cameras.start(good.replace("secret", "wrong")))
        assert text == f"'{server.url}' refused the user name and password of the URL"


def test_a_missing_stream_is_named(serve: Serve, packets: list[bytes]) -> None:
    def missing(method: str, headers: Mapping[str, str]) -> Answer | None:
        return ("404 Not Found", {}, b"") if method == "DESCRIBE" else None

    with RtspServer(packets, override=missing) as server:
        assert failure(serve().start(server.url)) == f"'{server.url}' does not exist on its server"


def test_a_size_that_changes_within_a_stream_is_checked(serve: Serve, packets: list[bytes]) -> None:
    large = rtp_packets(5, width=640, height=360)
    with RtspServer(joined(*[packets] * 6, large)) as server:
        call = serve(max_pixels="60000").start(server.url, mode="complete")
        call.wait()
    shapes = {response.outputs[0].shape for response in call.responses if response.outputs}
    assert shapes == {(180, 320, 3)}


def test_the_next_address_of_a_name_is_tried(packets: list[bytes]) -> None:
    with RtspServer(packets) as server:
        endpoint = Endpoint("rtsp", ("127.0.0.2", "127.0.0.1"), "camera.lan", server.port)
        with Connection(endpoint, 5.0).connect() as connected:
            assert connected.getpeername() == ("127.0.0.1", server.port)


def test_udp_is_used_where_the_model_allows_it(serve: Serve, packets: list[bytes]) -> None:
    with RtspServer(packets, speed=2, holds=True) as server:
        cameras = serve(allowed_transports="tcp,udp")
        call = cameras.start(server.url, TRANSPORT=b"UDP", mode="complete", FRAMES=FRAMES - 5)
        assert len(values(call, "INDEX")) == FRAMES - 5
        block_until(lambda: not server.clients)


@pytest.mark.parametrize("trusted", [True, False])
def test_rtsps_checks_the_certificate(
    serve: Serve, packets: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("camera")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with RtspServer(packets, tls=context) as server:
        call = serve().start(server.url, mode="complete")
        if trusted:
            assert len(values(call, "INDEX")) == FRAMES
        else:
            assert "certificate verify failed" in failure(call)
            assert server.requests == []


def test_several_streams_at_once(serve: Serve, packets: list[bytes]) -> None:
    cameras = serve()
    with RtspServer(packets) as server:
        calls = [cameras.start(server.url, mode="complete") for _ in range(8)]
        assert [len(values(call, "INDEX")) for call in calls] == [FRAMES] * 8
