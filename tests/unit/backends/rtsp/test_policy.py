"""Which addresses a model opens, asked as an attacker would."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.errors import InferError
from backends.rtsp.policy import SCHEMES, AllowList, Endpoint, redacted

NAMES = {
    "camera.lan": ["10.1.2.3"],
    "both.lan": ["127.0.0.1", "10.1.2.4"],
    "evil.lan": ["127.0.0.1"],
    "meta.lan": ["169.254.169.254"],
    "meta6.lan": ["fd00:ec2::254"],
    "mapped.lan": ["::ffff:127.0.0.1"],
    "a.cams.example": ["192.0.2.7"],
    "127.1": ["127.0.0.1"],
    "2130706433": ["127.0.0.1"],
}


def resolve(host: str, port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError("unknown name")
    return NAMES[host]


def endpoint(url: str, *hosts: str, schemes: Sequence[str] = SCHEMES) -> Endpoint:
    allowed = AllowList(schemes, hosts, None, resolve)
    return allowed.endpoint(allowed.split(url))


@pytest.mark.parametrize(
    ("url", "hosts", "expected"),
    [
        ("rtsp://10.1.2.3/x", ["10.1.2.3"], ("10.1.2.3", 554)),
        ("rtsp://10.1.2.3:554/x", ["10.0.0.0/8"], ("10.1.2.3", 554)),
        ("rtsp://10.1.2.3:8554/x", ["10.0.0.0/8:8554"], ("10.1.2.3", 8554)),
        ("http://10.1.2.3:81/x", ["10.1.2.3:*"], ("10.1.2.3", 81)),
        ("https://camera.lan/x", ["camera.lan"], ("10.1.2.3", 443)),
        ("rtsps://CAMERA.lan./x", ["Camera.LAN"], ("10.1.2.3", 322)),
        ("rtsp://a.cams.example/x", ["*.cams.example"], ("192.0.2.7", 554)),
        ("rtsp://[fd00::7]/x", ["[fd00::/8]"], ("fd00::7", 554)),
        ("rtsp://[fd00::7]:99/x", ["[fd00::7]:99"], ("fd00::7", 99)),
        ("rtsp://[::ffff:10.1.2.3]/x", ["10.0.0.0/8"], ("10.1.2.3", 554)),
        ("rtsp://127.0.0.1/x", ["127.0.0.1"], ("127.0.0.1", 554)),
        ("rtsp://evil.lan/x", ["evil.lan", "127.0.0.1"], ("127.0.0.1", 554)),
        ("rtsp://both.lan/x", ["both.lan"], ("10.1.2.4", 554)),
        ("rtsp://user:pass@camera.lan/x", ["camera.lan"], ("10.1.2.3", 554)),
    ],
)
def test_what_is_listed_is_allowed(url: str, hosts: list[str], expected: tuple[str, int]) -> None:
    found = endpoint(url, *hosts)
    assert (*found.addresses, found.port) == expected


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("rtsp://10.1.2.3/x", []),
        ("rtsp://10.1.2.4/x", ["10.1.2.3"]),
        ("rtsp://10.1.2.3:22/x", ["10.1.2.3"]),
        ("rtsp://10.1.2.3:80/x", ["10.1.2.3"]),  # the default port of another scheme
        ("http://camera.lan:6379/x", ["camera.lan"]),
        ("rtsp://camera.lan/x", ["10.0.0.0/8"]),  # a name is allowed by name only
        ("rtsp://evilcamera.lan/x", ["camera.lan"]),
        ("rtsp://camera.lan.evil.example/x", ["camera.lan"]),
        ("rtsp://cams.example/x", ["*.cams.example"]),
        ("rtsp://xcams.example/x", ["*.cams.example"]),
        ("rtsp://camera.lan@10.9.9.9/x", ["camera.lan"]),
        ("rtsp://camera.lan:554@10.9.9.9/x", ["camera.lan"]),
        ("rtsp://10.9.9.9#@camera.lan/x", ["camera.lan"]),
        ("rtsp://10.9.9.9\\@camera.lan.evil/x", ["camera.lan"]),
        ("rtsp://127.1/x", ["10.0.0.0/8"]),
        ("rtsp://2130706433/x", ["10.0.0.0/8"]),
        ("rtsp://[::ffff:127.0.0.1]/x", ["10.0.0.0/8"]),
        ("rtsp://[::1]/x", ["127.0.0.1"]),
        ("rtsp:///x", ["camera.lan"]),
        # Names that are allowed, but lead to this machine or to metadata.
        ("rtsp://evil.lan/x", ["evil.lan"]),
        ("rtsp://meta.lan/x", ["meta.lan"]),
        ("rtsp://meta6.lan/x", ["meta6.lan"]),
        ("rtsp://mapped.lan/x", ["mapped.lan"]),
        ("rtsp://evil.lan/x", ["evil.lan", "127.0.0.1:8000"]),
        ("rtsp://unknown.lan/x", ["unknown.lan"]),
    ],
)
def test_everything_else_is_refused(url: str, hosts: list[str]) -> None:
    with pytest.raises(InferError, match=r"allowed_hosts|cannot be resolved"):
        endpoint(url, *hosts)


@pytest.mark.parametrize(
    "url",
    [
        "gopher://10.1.2.3/",
        "ftp://10.1.2.3/",
        "concat:a|b",
        "pipe:0",
        "subfile,,start,0,end,0,,:x://y",
        "http://10.1.2.3",
    ],
)
def test_schemes_that_are_not_listed_are_refused(url: str) -> None:
    allowed = AllowList(["rtsp", "file"], ["10.1.2.3"], None, resolve)
    with pytest.raises(InferError, match=r"scheme|URL|directory"):
        allowed.file(allowed.split(url))


@pytest.mark.parametrize(
    "entry", ["", ":80", "a/b", "10.0.0.0/33", "camera.lan:x", "camera.lan:70000", "*", "*.", "a*b"]
)
def test_entries_that_are_no_hosts_fail_the_load(entry: str) -> None:
    with pytest.raises(InferError, match="parameter 'allowed_hosts'"):
        AllowList(SCHEMES, [entry], None)


def test_a_name_is_resolved_for_each_stream_anew_and_once(tmp_path: Path) -> None:
    answers = iter([["10.1.2.3"], ["127.0.0.1"]])
    allowed = AllowList(SCHEMES, ["camera.lan"], None, lambda host, port: next(answers))
    assert allowed.endpoint(allowed.split("rtsp://camera.lan/x")).addresses == ("10.1.2.3",)
    with pytest.raises(InferError, match=r"resolves to 127\.0\.0\.1"):
        allowed.endpoint(allowed.split("rtsp://camera.lan/x"))


def test_messages_have_no_password() -> None:
    allowed = AllowList(SCHEMES, [], None)
    assert redacted(allowed.split("rtsp://me:secret@camera:99/x?token=1")) == "rtsp://camera:99/x"
