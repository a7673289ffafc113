"""What the user reads who has started the server."""

import json
import re
from typing import Any

import msgspec
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.files.certificates import Certificates
from app.core.installed.installation import server_version
from app.ingress.rest.home.first_request import first_request
from app.native.choice import described
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.settings.settings import RepositorySettings, ServerSettings
from nereid.console.messages import failed, http_url, ready, starting

SETTINGS = ServerSettings(repository=RepositorySettings(paths=("/models", "s3://bucket")))


def model(name: str, *dims: int, datatype: str = "TYPE_FP32", **fields: Any) -> VersionEntry:
    config = mc.ModelConfig(name=name, **fields)
    config.input.add(name="IN", data_type=datatype, dims=dims)
    return VersionEntry(name, 1, ModelState.READY, config=config.SerializeToString())


def bad(name: str, reason: str, version: int = 1) -> VersionEntry:
    return VersionEntry(name, version, ModelState.UNAVAILABLE, reason)


def table(*entries: VersionEntry) -> RoutingTable:
    return RoutingTable(1, True, entries)


def changed(section: str, **fields: Any) -> ServerSettings:
    part = msgspec.structs.replace(getattr(SETTINGS, section), **fields)
    return msgspec.structs.replace(SETTINGS, **{section: part})


def banner(settings: ServerSettings, *entries: VersionEntry) -> str:
    return ready(settings, table(*entries), 12.3, "/private/ray.log", 42)


def test_first_line_names_version_and_repositories() -> None:
    assert (
        starting(SETTINGS) == f"Nereid {server_version()} is starting with the models of /models, s3://bucket"
    )


def test_banner_has_what_a_newcomer_needs() -> None:
    assert banner(SETTINGS, model("one", 4)) == "\n".join(
        [
            f"Nereid {server_version()}: 1 of 1 models are ready after 12 s",
            "  HTTP       http://127.0.0.1:8000",
            "             http://127.0.0.1:8000/docs describes the API",
            "  gRPC       127.0.0.1:8001",
            "  Metrics    http://127.0.0.1:8002/metrics",
            "  Models     /models, s3://bucket",
            f"  Data plane {described('auto')}",
            "  Ray's log  /private/ray.log",
            "  Stop       Ctrl-C, or kill 42",
            "A first request:",
            '  curl -s http://127.0.0.1:8000/v2/models/one/infer -d \'{"inputs": [{"name": "IN", '
            '"shape": [4], "datatype": "FP32", "data": [1, 1, 1, 1]}]}\'',
        ]
    )


@pytest.mark.parametrize(
    ("address", "host"), [("0.0.0.0", "localhost"), ("::", "localhost"), ("::1", "[::1]")]
)
def test_address_is_one_that_a_client_here_can_use(address: str, host: str) -> None:
    assert http_url(changed("http", address=address)) == f"http://{host}:8000"


def test_banner_names_what_is_not_ready() -> None:
    unloaded = VersionEntry("gone", 1, ModelState.UNAVAILABLE, "unloaded")
    text = banner(SETTINGS, model("one", 4), bad("two", "first line\nsecond line"), unloaded)
    assert ": 1 of 2 models are ready after" in text
    assert "Not ready: two version 1: first line\n  second line\n" in text


def test_banner_counts_models_that_could_not_be_read() -> None:
    text = banner(SETTINGS, model("one", 4), VersionEntry("two", NO_VERSION, ModelState.UNKNOWN, "why"))
    assert ": 1 of 2 models are ready after" in text and "Not ready: two: why" in text


def test_banner_of_a_failed_start_says_that_it_is_not_ready() -> None:
    text = ready(SETTINGS, RoutingTable(1, failed=True), 12.3, "", 4321)
    assert ": not ready, the models cannot be read after" in text


def test_free_port_is_not_shown_as_0() -> None:
    text = banner(changed("http", port=0), model("one", 4))
    assert ":0" not in text
    assert "see 'Started HTTPService' above" in text
    assert "curl" not in text


def test_disabled_services_have_no_address() -> None:
    text = banner(changed("grpc", enabled=False))
    assert "gRPC" not in text and "ready, without any model" in text


@pytest.mark.parametrize(("certificates", "scheme"), [(None, "http"), (Certificates("cert", "key"), "https")])
def test_address_of_the_console_says_whether_it_has_tls(
    certificates: Certificates | None, scheme: str
) -> None:
    text = banner(changed("console", enabled=True, certificates=certificates))
    assert f"  Console    {scheme}://127.0.0.1:8003\n" in text


def test_first_request_of_explicit_mode_is_a_load() -> None:
    text = banner(changed("repository", control_mode="explicit"))
    assert text.endswith("curl -s -X POST http://127.0.0.1:8000/v2/repository/models/NAME/load")


def test_first_request_has_a_token_where_one_is_asked_for() -> None:
    text = banner(changed("access", tokens_file="/tokens"), model("one", 4))
    assert "curl -s -H 'Authorization: Bearer TOKEN' http://127.0.0.1:8000/v2/models/one/infer" in text


def test_banner_says_how_a_token_is_sent_and_where_the_dashboard_is() -> None:
    settings = changed("access", tokens_file="/tokens")
    text = ready(settings, table(), 12.3, "", 4321, "http://127.0.0.1:8265")
    make = "nereid token new --scope=infer --file=/tokens"
    assert f"  Tokens     -H 'Authorization: Bearer TOKEN' sends one, made by: {make}\n" in text
    assert "  Ray        http://127.0.0.1:8265 is its dashboard\n" in text
    assert "Tokens" not in banner(SETTINGS) and "dashboard" not in banner(SETTINGS)


def test_failed_start_lists_the_failed_models_last() -> None:
    reason = "Internal: no such file"
    text = failed(table(model("one", 4), bad("two", reason, NO_VERSION), bad("three", reason)), "/ray.log")
    assert text.splitlines() == [
        "error: creating server: Internal - failed to load all models",
        "Messages of Ray: /ray.log",
        "1 of 3 models are ready. To serve those that are, start with --exit-on-error=false.",
        f"Not ready: three version 1: {reason}",
        f"Not ready: two: {reason}",
    ]


def test_causes_of_a_failed_start_come_first_and_once() -> None:
    def depends(on: str, reason: str) -> str:
        text = f"ensemble depends on '{on}' which has no loaded version."
        return f"{text} Model '{on}' loading failed with error: version 1 is at UNAVAILABLE state: {reason};"

    reason = "Internal: ModuleNotFoundError: x\n\nAt:\n  model.py(1): <module>\n"
    inner = depends("z", reason)
    text = failed(table(bad("a", depends("b", inner)), bad("b", inner), bad("z", reason)), "")
    assert text.splitlines()[2:] == [
        "Not ready: z version 1: Internal: ModuleNotFoundError: x",
        "  At:",
        "    model.py(1): <module>",
        "Not ready: b version 1: ensemble depends on 'z' which has no loaded version.",
        "Not ready: a version 1: ensemble depends on 'b' which has no loaded version.",
    ]


def test_a_reason_of_many_lines_is_cut() -> None:
    text = failed(table(bad("a", "\n".join(map(str, range(100))))), "")
    assert text.endswith("\n  30\n  ... 69 more lines are in the log")


def test_many_failures_are_cut() -> None:
    text = failed(table(*(bad(f"m{number:02}", "broken") for number in range(30))), "")
    assert text.endswith("Not ready: 10 more")
    assert text.count("broken") == 20


def sent(*entries: VersionEntry) -> tuple[str, Any]:
    """The model and the body of the first request."""
    command = first_request(table(*entries), "curl -s", "http://h:1")
    match = re.fullmatch(r"curl -s http://h:1/v2/models/(.+)/infer -d '(.+)'", command)
    assert match is not None
    return match[1], json.loads(match[2])["inputs"]


@pytest.mark.parametrize(
    ("entry", "tensor"),
    [
        (model("m", -1, 2, max_batch_size=8), {"shape": [1, 1, 2], "datatype": "FP32", "data": [1, 1]}),
        (model("m", 1, datatype="TYPE_STRING"), {"shape": [1], "datatype": "BYTES", "data": ["hello"]}),
        (model("m", 2, datatype="TYPE_BOOL"), {"shape": [2], "datatype": "BOOL", "data": [True, True]}),
    ],
)
def test_first_request_fits_the_model(entry: VersionEntry, tensor: dict[str, Any]) -> None:
    assert sent(entry) == ("m", [{"name": "IN", **tensor}])


def test_first_request_prefers_few_numbers_to_text() -> None:
    chosen = sent(model("a", 1, datatype="TYPE_STRING"), model("b", 8), model("c", 2))
    assert chosen[0] == "c"


@pytest.mark.parametrize(
    "entry",
    [
        model("m", 1000),
        model("m", 1, datatype="TYPE_FP16"),
        model("m", 1, sequence_batching=mc.ModelSequenceBatching()),
        model("m", 1, model_transaction_policy=mc.ModelTransactionPolicy(decoupled=True)),
        VersionEntry("m", 1, ModelState.LOADING),
    ],
)
def test_first_request_leaves_out_models_that_json_does_not_suit(entry: VersionEntry) -> None:
    assert first_request(table(entry), "curl -s", "http://h:1") == ""
