"""Log and trace settings as values: flags, changes, what holds for a model."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.errors import InferError
from app.core.observability.live_settings import LiveChange, LiveSettings, decode_change, decode_live
from app.core.observability.log import VERBATIM, LogConfig, TritonFormatter, configure_logging
from app.core.observability.trace_settings import GLOBAL, TraceSetting, TraceSettings, parse_trace_config

BASE = TraceSetting(("TIMESTAMPS",), rate=6, file="t.json")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), TraceSetting()),
        (("triton,file=f", "level=TIMESTAMPS", "rate=5"), TraceSetting(("TIMESTAMPS",), 5, file="f")),
        (("level=TENSORS", "level=TIMESTAMPS"), TraceSetting(("TIMESTAMPS", "TENSORS"))),
        (("level=TENSORS", "level=OFF"), TraceSetting()),
        (("level=MIN", "level=MAX"), TraceSetting(("TIMESTAMPS",))),
        (("triton,log-frequency=3", "count=7"), TraceSetting(count=7, log_frequency=3)),
    ],
)
def test_flags(entries: Any, expected: Any) -> None:
    assert parse_trace_config(entries) == expected


def test_opentelemetry_flags() -> None:
    setting = parse_trace_config(
        ["mode=opentelemetry", "opentelemetry,url=h:1/v1/traces", "opentelemetry,resource=a=b",
         "opentelemetry,resource=c=d", "opentelemetry,bsp_max_queue_size=9"]
    )  # fmt: skip
    assert setting.mode == "opentelemetry"
    assert setting.options == {
        "bsp_max_export_batch_size": "512",
        "bsp_max_queue_size": "9",
        "bsp_schedule_delay": "5000",
        "resource": "a=b,c=d",
        "url": "h:1/v1/traces",
    }


def test_opentelemetry_variables_are_the_defaults_of_its_flags() -> None:
    environment = {"OTEL_BSP_MAX_QUEUE_SIZE": "7", "OTEL_BSP_SCHEDULE_DELAY": "x", "PATH": "/"}
    entries = ["mode=opentelemetry", "opentelemetry,bsp_schedule_delay=3"]
    options = parse_trace_config(entries, environment).options
    assert options == {
        "bsp_max_export_batch_size": "512",
        "bsp_max_queue_size": "7",
        "bsp_schedule_delay": "3",
    }


def test_invalid_opentelemetry_variable_is_refused_where_it_counts() -> None:
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "soon"}
    with pytest.raises(ValueError, match='Bad option: "OTEL_BSP_SCHEDULE_DELAY"'):
        parse_trace_config(["mode=opentelemetry"], environment)
    assert parse_trace_config(["mode=triton"], environment) == TraceSetting()


@pytest.mark.parametrize(
    "entry",
    ["rate", "rate=x", "rate=-1", "count=-2", "level=ALL", "mode=zipkin", "jaeger,url=x", "speed=1",
     "opentelemetry,bsp_schedule_delay=fast", "opentelemetry,color=red"],
)  # fmt: skip
def test_unknown_flag_value_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="--trace-config"):
        parse_trace_config([entry])


def test_model_inherits_unset_trace_settings() -> None:
    settings = TraceSettings(BASE).changed("m", {"log_frequency": 2})
    settings = settings.changed(GLOBAL, {"rate": 3})
    assert settings.for_model("m") == msgspec.structs.replace(BASE, rate=3, log_frequency=2)
    assert settings.for_model("other") == settings.for_model() == msgspec.structs.replace(BASE, rate=3)
    cleared = settings.changed("m", {"log_frequency": None}).changed(GLOBAL, {"rate": None})
    assert cleared == TraceSettings(BASE)


@pytest.mark.parametrize(
    ("startup", "change", "reason"),
    [
        (BASE, {"rate": 0}, "sample rate must be non-zero"),
        (TraceSetting(), {"level": ("TENSORS",)}, "trace file name is not given"),
    ],
)
def test_settings_that_cannot_trace_are_refused(startup: Any, change: Any, reason: Any) -> None:
    with pytest.raises(InferError, match=f"Attempting to set invalid trace setting :{reason}"):
        TraceSettings(startup).changed("m", change)


def test_rate_zero_is_for_disabled_tracing_and_opentelemetry() -> None:
    TraceSettings(BASE).changed("m", {"level": (), "rate": 0})
    TraceSettings(TraceSetting(("TIMESTAMPS",), mode="opentelemetry")).changed(GLOBAL, {"rate": 0})


def test_settings_and_changes_round_trip() -> None:
    live = LiveSettings(LogConfig(log_info=False), TraceSettings(BASE, {"m": {"rate": 1}}))
    change = LiveChange({"log_verbose_level": 2}, {"m": {"level": ("TENSORS",)}})
    arrived = decode_live(msgspec.msgpack.encode(live)).changed(decode_change(msgspec.msgpack.encode(change)))
    assert arrived.log == live.changed(change).log
    assert arrived.trace.for_model("m") == msgspec.structs.replace(BASE, rate=1, level=("TENSORS",))


def record(message: Any, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("app", level, "/x/file.py", 12, message, (), None)
    made.__dict__.update(extra)
    return made


def test_message_cannot_forge_a_line() -> None:
    line = TritonFormatter().format(record("\n+evil\r\nI0101 forged\x1b[2J"))
    assert "\n" not in line and "\r" not in line and "\x1b" not in line
    assert json.loads(line.partition("] ")[2]) == "\n+evil\r\nI0101 forged\x1b[2J"
    line = TritonFormatter().format(record("größe \x9b2J\x85\u2028\x7f forged"))
    assert line.endswith('"größe \\u009b2J\\u0085\\u2028\\u007f forged"')
    assert (
        TritonFormatter()
        .format(record('{"a": 1}', logging.INFO, **VERBATIM))
        .endswith('file.py:12] {"a": 1}')
    )


def test_severities_go_to_the_streams_of_triton(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogConfig(log_warning=False))
    logger = logging.getLogger("app.test")
    logger.debug("verbose")
    logger.info("information")
    logger.warning("warning")
    logger.error("error")
    out, err = capsys.readouterr()
    assert '"information"' in out and "verbose" not in out
    assert '"error"' in err and "warning" not in err
    configure_logging(LogConfig(log_info=False, log_verbose_level=1, log_format="ISO8601"))
    logger.info("information")
    logger.debug("verbose")
    out, _ = capsys.readouterr()
    assert "information" not in out and "Z I " in out and '"verbose"' in out


def test_log_file_receives_every_severity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogConfig(log_file=str(tmp_path / "log")))
    logging.getLogger("deployments.x").info("one")
    logging.getLogger("app.x").error("two")
    assert [line.partition("] ")[2] for line in (tmp_path / "log").read_text().splitlines()] == [
        '"one"',
        '"two"',
    ]
    assert capsys.readouterr() == ("", "")
