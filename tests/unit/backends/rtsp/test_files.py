"""Streams of files, which are read to their end however slowly they are received."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from backends.registry.configuration import normalise, validate
from tests.unit.backends.rtsp.conftest import FRAMES, Serve, failure, values
from tests.video import picture
from tests.waiting import block_until


def test_backend_alone_is_a_complete_configuration(serve: Serve) -> None:
    completed = serve().served.model.config
    validate(normalise(completed))
    assert completed.model_transaction_policy.decoupled
    assert {t.name: (mc.DataType.Name(t.data_type), list(t.dims)) for t in completed.input} == {
        "URL": ("TYPE_STRING", [1]),
        "FRAMES": ("TYPE_INT32", [1]),
        "FPS": ("TYPE_FP32", [1]),
        "SIZE": ("TYPE_INT32", [2]),
        "TRANSPORT": ("TYPE_STRING", [1]),
    }
    assert [t.name for t in completed.input if not t.optional] == ["URL"]
    assert {t.name: (mc.DataType.Name(t.data_type), list(t.dims)) for t in completed.output} == {
        "FRAME": ("TYPE_UINT8", [-1, -1, 3]),
        "PTS": ("TYPE_INT64", [1]),
        "INDEX": ("TYPE_INT64", [1]),
    }


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.avi", "clip.ts", "clip.h264"])
def test_every_frame_of_a_file_is_sent_once_and_in_order(serve: Serve, name: str) -> None:
    call = serve().start(name)
    assert values(call, "INDEX") == list(range(FRAMES))
    times = values(call, "PTS")
    np.testing.assert_allclose(times, np.arange(FRAMES) * 1e6 / 30, atol=1000 if name != "clip.h264" else 3e5)


def test_frames_are_the_pictures_in_memory_of_their_own(serve: Serve) -> None:
    frames = values(serve().start("clip.mp4"), "FRAME")
    assert {(frame.shape, frame.dtype.name) for frame in frames} == {((180, 320, 3), "uint8")}
    for index, frame in enumerate(frames):
        difference = np.abs(frame.astype(int) - picture(index, 320, 180))
        assert difference.mean() < 3, index
    memory = {frame.__array_interface__["data"][0] for frame in frames}
    assert len(memory) == FRAMES


def test_frames_ends_a_stream(serve: Serve) -> None:
    assert values(serve().start("clip.mp4", FRAMES=7), "INDEX") == list(range(7))


def test_fps_leaves_frames_out(serve: Serve) -> None:
    call = serve().start("clip.mp4", FPS=10)
    assert values(call, "INDEX") == list(range(0, FRAMES, 3))


def test_fps_above_that_of_the_video_sends_all(serve: Serve) -> None:
    assert len(values(serve().start("clip.mp4", FPS=120), "INDEX")) == FRAMES


def test_size_scales(serve: Serve) -> None:
    call = serve().start("clip.mp4", SIZE=[90, 161], FRAMES=2)
    assert [frame.shape for frame in values(call, "FRAME")] == [(90, 161, 3)] * 2


def test_only_requested_outputs_are_sent(serve: Serve) -> None:
    call = serve().start("clip.mp4", outputs=("PTS",), FRAMES=1)
    assert [tensor.name for tensor in call.wait()[0].outputs] == ["PTS"]


def test_a_stream_waits_for_who_keeps_its_frames(serve: Serve) -> None:
    cameras = serve(frames_in_flight="4")
    call = cameras.start("clip.mp4")
    block_until(lambda: len(call.responses) == 4)
    held = [call.responses.pop(0) for _ in range(3)]
    assert not call.finished.wait(0.2)
    assert len(call.responses) == 1
    del held
    block_until(lambda: len(call.responses) == 4, "it waits for memory that is free", 0.9)
    call.cancelled = True
    call.wait()


def test_a_live_stream_drops_the_oldest_frames_while_nobody_reads(serve: Serve) -> None:
    cameras = serve(frames_in_flight="2", reconnect_attempts="1", reconnect_pause_s="0.01")
    call = cameras.start("clip.mp4", mode="live", FRAMES=3)
    block_until(lambda: len(call.responses) == 2)
    queue = cameras.served.model.state.streams[0]._queue
    dropped = queue.dropped
    block_until(lambda: queue.dropped > dropped + 5)
    first = [int(call.responses.pop(0).outputs[2].array()[0]) for _ in range(2)]
    last = [int(response.outputs[2].array()[0]) for response in call.wait() if response.outputs]
    assert last[0] > first[1] + 1 and len(last) == 1
    block_until(lambda: cameras.metric("rtsp_frames_dropped") > 0)


def test_cancelling_ends_a_stream_and_frees_its_place(serve: Serve) -> None:
    cameras = serve(frames_in_flight="1", max_streams="1")
    call = cameras.start("clip.mp4")
    assert failure(cameras.start("clip.mp4")) == "the model has 1 streams open already (max_streams)"
    call.cancelled = True
    assert call.wait()[-1].failure is None
    assert cameras.streams() == 0
    assert len(values(cameras.start("clip.mp4", FRAMES=1), "INDEX")) == 1


def test_unloading_ends_streams(serve: Serve) -> None:
    cameras = serve(frames_in_flight="1")
    call = cameras.start("clip.mp4")
    cameras.served.backend.model_finalize(cameras.served.model)
    assert failure(call) == "model 'cameras' was unloaded"


def test_metrics_count(serve: Serve) -> None:
    cameras = serve()
    values(cameras.start("clip.mp4", FRAMES=5), "INDEX")
    assert cameras.metric("rtsp_frames_sent") == 5
    assert cameras.metric("rtsp_streams") == 0


@pytest.mark.parametrize(
    "url", ["file:clip.mp4", "file:///clip.mp4", "./clip.mp4", "../media/clip.mp4", "{media}"]
)
def test_files_of_the_directory_may_be_named_in_several_ways(serve: Serve, media: Path, url: str) -> None:
    url = url.format(media=f"file://{media}/media/clip.mp4")
    if url == "file:///clip.mp4":
        assert "outside the model's media_directory" in failure(serve().start(url))
    else:
        assert len(values(serve().start(url, FRAMES=1), "INDEX")) == 1


@pytest.mark.parametrize(
    "url",
    [
        "../secret.mp4",
        "/etc/passwd",
        "file:///etc/passwd",
        "link.mp4",
        "%2e%2e/secret.mp4",
        "a/../../secret.mp4",
    ],
)
def test_files_outside_the_directory_are_refused(serve: Serve, media: Path, url: str) -> None:
    link = media / "media" / "link.mp4"
    if not link.is_symlink():
        link.symlink_to(media / "secret.mp4")
    assert "is outside the model's media_directory" in failure(serve().start(url))


@pytest.mark.parametrize("name", ["none.mp4", ".", "pipe", "%00"])
def test_what_is_no_file_is_refused(serve: Serve, media: Path, name: str) -> None:
    pipe = media / "media" / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    text = failure(serve().start(name))
    assert "there is no file" in text or "is no path" in text


def test_without_a_directory_no_file_is_opened(serve: Serve) -> None:
    assert "media_directory' is not set" in failure(serve(media_directory="").start("clip.mp4"))


PLAYLISTS = {
    "list.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{clip}\n#EXT-X-ENDLIST\n",
    "list.txt": "ffconcat version 1.0\nfile {clip}\n",
    "list.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\n",
    "page.svg": '<svg xmlns="http://www.w3.org/2000/svg"><image href="{clip}"/></svg>',
}


@pytest.mark.parametrize("name", PLAYLISTS)
def test_playlists_are_not_followed(serve: Serve, media: Path, name: str) -> None:
    (media / "media" / name).write_text(PLAYLISTS[name].format(clip=media / "secret.mp4"))
    assert failure(serve().start(name)).startswith(f"'{name}' is no video that this model reads")


def test_frames_larger_than_allowed_are_refused(serve: Serve) -> None:
    text = failure(serve(max_pixels="50000").start("clip.mp4"))
    assert text == "'clip.mp4' has frames of 320 x 180, more than the 50000 pixels of the model's max_pixels"


def test_a_file_without_video_is_refused(serve: Serve, media: Path) -> None:
    import av

    with av.open(str(media / "media" / "sound.mkv"), "w") as output:
        stream: Any = output.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), layout="mono")
        frame.rate = 8000
        output.mux(stream.encode(frame))
    assert failure(serve().start("sound.mkv")) == "'sound.mkv' has no video"


def test_damaged_packets_are_skipped(serve: Serve, media: Path) -> None:
    whole = (media / "media" / "clip.ts").read_bytes()
    random = np.random.default_rng(0)
    data = bytearray(whole)
    for place in random.integers(len(data) // 3, len(data), 60):
        data[place] ^= 0xFF
    (media / "media" / "damaged.ts").write_bytes(data)
    assert len(values(serve().start("damaged.ts"), "INDEX")) > FRAMES // 3


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"FRAMES": -1}, "input 'FRAMES': expected a number of frames, or 0 for all, got -1"),
        ({"FPS": -1.0}, "input 'FPS': expected up to 1000 frames per second, or 0 for all, got -1.0"),
        ({"FPS": np.nan}, "input 'FPS': expected up to 1000 frames per second, or 0 for all, got nan"),
        ({"SIZE": [0, 10]}, "got [0,10]"),
        ({"SIZE": [100000, 100000]}, "at most 8847360 pixels (the model's max_pixels), got [100000,100000]"),
        (
            {"TRANSPORT": b"udp"},
            "input 'TRANSPORT': 'udp' is not allowed; allowed_transports of the model: tcp",
        ),
        ({"mode": "fast"}, "parameter 'mode': 'fast' is none of auto, live, complete"),
    ],
)
def test_inputs_out_of_their_range_are_refused(serve: Serve, inputs: Any, text: str) -> None:
    assert text in failure(serve().start("clip.mp4", **inputs))


@pytest.mark.parametrize("url", ["", "a b", "rtsp://a/\r\nX: 1", "x" * 3000, "rtsp://[::1", "clip\u00e9.mp4"])
def test_malformed_addresses_are_refused(serve: Serve, url: str) -> None:
    assert "URL" in failure(serve().start(url))


@pytest.mark.parametrize(
    ("text", "parameters", "error"),
    [
        ("max_batch_size: 2", {}, "max_batch_size must be 0"),
        ('input { name: "X" data_type: TYPE_FP32 dims: 1 }', {}, "unexpected inference input 'X'"),
        ("", {"allowed_schemes": "rtsp,ftp"}, "parameter 'allowed_schemes': 'ftp' is none of file, rtsp"),
        ("", {"allowed_transports": "sctp"}, "parameter 'allowed_transports': 'sctp' is none of tcp, udp"),
        (
            "",
            {"read_timeout_s": "soon"},
            "parameter 'read_timeout_s' of model 'cameras': 'soon' is no number",
        ),
        ("", {"mode": "fast"}, "parameter 'mode': 'fast' is none of"),
    ],
)
def test_configurations_that_cannot_work_are_refused(
    serve: Serve, text: str, parameters: dict[str, str], error: str
) -> None:
    with pytest.raises(InferError, match=error):
        serve(text, **parameters)
