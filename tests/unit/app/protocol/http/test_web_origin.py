"""Requests of web pages, by their Origin and Host."""

import pytest

from app.protocol.http.web_origin import WebOriginPolicy

EVIL = "Origin 'https://evil.example' is not this server's and not allowed by --allow-origin"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "127.0.0.1", "[::1]:8000", "localhost:8", "LOCALHOST", "localhost.", "a.localhost:1"],
)
def test_client_without_origin_is_accepted(host: str) -> None:
    policy = WebOriginPolicy("127.0.0.1")
    assert policy.refusal(None, host) == policy.refusal(None, None) == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_foreign_host_is_refused_on_loopback(address: str) -> None:
    text = "Host 'evil.example:8000' is no address or name of this server and not allowed by --allow-host"
    assert WebOriginPolicy(address).refusal(None, "evil.example:8000") == text
    # DNS rebinding: the page's origin is the name that now resolves to loopback.
    assert WebOriginPolicy(address).refusal("http://evil.example:8000", "evil.example:8000") == text


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1"])
def test_any_host_is_accepted_on_other_addresses(address: str) -> None:
    assert WebOriginPolicy(address).refusal(None, "triton.example") == ""
    assert WebOriginPolicy(address).refusal("https://evil.example", "triton.example") == EVIL


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://", ""])
def test_foreign_origin_is_refused(origin: str) -> None:
    for host in ("localhost:8000", None):
        assert f"Origin '{origin}' is not this server's" in WebOriginPolicy("::1").refusal(origin, host)


def test_own_origin_is_accepted() -> None:
    assert WebOriginPolicy("127.0.0.1").refusal("http://localhost:8000", "localhost:8000") == ""


def test_allowed_origins_and_hosts_are_accepted() -> None:
    policy = WebOriginPolicy("127.0.0.1", ("https://Console.example/",), ("gateway",))
    assert policy.refusal("https://console.example", "gateway:80") == ""
    assert policy.refusal("https://evil.example", "gateway:80") == EVIL
    assert WebOriginPolicy("127.0.0.1", ("*",), ("*",)).refusal("null", "evil.example") == ""
