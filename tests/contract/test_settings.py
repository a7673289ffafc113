"""The logging and trace extensions as tritonclient sees them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.drivers import Driver, Refused

MODEL = "identity_fp32"
NO_LOG_FILE = "log file location can not be updated through network protocol"
NO_TRACE_FILE = "trace file location can not be updated through network protocol"


def settings(answer: Any) -> dict[str, Any]:
    """The settings of either protocol as one dictionary; gRPC's values of one string as that string."""
    if isinstance(answer, dict):
        return answer
    found = {}
    for key, value in answer.settings.items():
        if hasattr(value, "value"):
            found[key] = list(value.value) if key == "trace_level" else value.value[0]
        else:
            found[key] = getattr(value, value.WhichOneof("parameter_choice"))
    return found


def refusal(client: Driver, method: str, *args: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as raised:
        client.call(method, *args)
    return raised.value.refusal


@pytest.fixture
def client_restoring(client: Driver) -> Iterator[Driver]:
    yield client
    client.call("update_log_settings", {"log_info": True, "log_format": "default", "log_verbose_level": 0})
    client.call("update_trace_settings", None, {"trace_rate": None, "trace_count": None})
    client.call("update_trace_settings", MODEL, {"trace_rate": None})


def test_log_settings(client_restoring: Driver) -> None:
    client = client_restoring
    wanted = {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
    everything = {"log_file": "", "log_warning": True, "log_error": True, **wanted}
    assert settings(client.call("update_log_settings", wanted)) == everything
    assert settings(client.call("get_log_settings")) == everything


def test_refused_log_settings(client: Driver) -> None:
    http = client.protocol == "http"
    unsupported = "501" if http else "UNIMPLEMENTED"
    assert refusal(client, "update_log_settings", {"log_file": "/tmp/x"}) == (unsupported, NO_LOG_FILE)
    assert refusal(client, "update_log_settings", {"log_format": "xml"}) == (
        ("503", "invalid argument for --log_format, got: xml")
        if http
        else ("INVALID_ARGUMENT", "invalid argument for log_format, got: xml")
    )


def test_trace_settings(client_restoring: Driver) -> None:
    client = client_restoring
    initial = {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }
    assert settings(client.call("get_trace_settings")) == initial
    own = settings(client.call("update_trace_settings", MODEL, {"trace_rate": "7"}))
    assert own == {**initial, "trace_rate": "7"}
    client.call("update_trace_settings", None, {"trace_rate": "9", "trace_count": "5"})
    assert settings(client.call("get_trace_settings", MODEL)) == {**own, "trace_count": "5"}
    client.call("update_trace_settings", MODEL, {"trace_rate": None})
    assert settings(client.call("get_trace_settings", MODEL))["trace_rate"] == "9"


def test_refused_trace_settings(client: Driver) -> None:
    http = client.protocol == "http"
    invalid = "400" if http else "INVALID_ARGUMENT"
    unsupported = "501" if http else "UNIMPLEMENTED"
    update = "update_trace_settings"
    assert refusal(client, update, None, {"trace_file": "/tmp/x"}) == (unsupported, NO_TRACE_FILE)
    assert refusal(client, update, None, {"trace_level": ["OFF", "TENSORS"]}) == (
        invalid,
        "Expect only one trace level 'OFF' is specified",
    )
    assert refusal(client, update, MODEL, {"trace_level": ["TIMESTAMPS"]}) == (
        invalid,
        "Attempting to set invalid trace setting :trace file name is not given",
    )
    got = "got:" if http else "got: "
    assert refusal(client, update, None, {"trace_count": "-2"}) == (
        invalid,
        f"Unable to parse 'trace_count'. Expecting value >= -1, {got}-2",
    )


def test_trace_settings_of_an_unknown_model(client: Driver) -> None:
    code = "INVALID_ARGUMENT" if client.protocol == "grpc" else "400"
    assert refusal(client, "get_trace_settings", "nothing") == (code, "Request for unknown model : nothing")
