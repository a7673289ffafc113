"""The tables in the log of a start, beside those of tritonserver 2.51."""

from pathlib import Path

from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from deployments.manager.start import backend_table, option_table, start_tables, status_table
from tests.unit.ensembles import CHAIN, entry, model


def cells(table: str) -> list[list[str]]:
    """The rows of a table without its frame."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]


def test_status_table_lists_models() -> None:
    table = RoutingTable(
        1,
        True,
        (
            VersionEntry("simple", 10, ModelState.READY),
            VersionEntry("simple", 2, ModelState.UNAVAILABLE, "Internal: no such file"),
            VersionEntry("bad", NO_VERSION, ModelState.UNKNOWN, "Internal: unreadable"),
        ),
    )
    assert status_table(table).splitlines() == [
        "+--------+---------+-------------------------------------+",
        "| Model  | Version | Status                              |",
        "+--------+---------+-------------------------------------+",
        "| bad    | -       | Not loaded: Internal: unreadable    |",
        "| simple | 2       | UNAVAILABLE: Internal: no such file |",
        "| simple | 10      | READY                               |",
        "+--------+---------+-------------------------------------+",
    ]


def test_reason_of_several_lines_does_not_break_the_table() -> None:
    reason = "Internal: ValueError: no\n\nAt:\n  model.py(4): initialize\n"
    entry = VersionEntry("m", 1, ModelState.UNAVAILABLE, reason)
    assert status_table(RoutingTable(1, True, (entry,))).splitlines()[3:] == [
        "| m     | 1       | UNAVAILABLE: Internal: ValueError: no |",
        "+-------+---------+---------------------------------------+",
    ]


def test_status_table_has_a_reason_once() -> None:
    text = "Invalid argument: ensemble 'e' depends on 'm' which has no loaded version."
    more = " Model 'm' loading failed with error: version 1 is at UNAVAILABLE state: Internal: why;"
    entry = VersionEntry("e", 1, ModelState.UNAVAILABLE, text + more)
    assert cells(status_table(RoutingTable(1, True, (entry,))))[1][2] == f"UNAVAILABLE: {text}"


def test_status_table_without_models() -> None:
    assert status_table(RoutingTable()).splitlines()[1] == "| Model | Version | Status |"


def test_tables_are_in_the_order_of_tritonserver() -> None:
    heads = [cells(text)[0] for text in start_tables(ServerSettings(), RoutingTable())]
    assert heads == [
        ["Repository Agent", "Path"],
        ["Backend", "Path", "Config"],
        ["Model", "Version", "Status"],
        ["Option", "Value"],
    ]


def test_option_table_has_the_rows_of_tritonserver(tmp_path: Path) -> None:
    settings = from_args(
        {
            "model_repository": [str(tmp_path), "s3://bucket/models"],
            "model_control_mode": "explicit",
            "load_model": ["b", "a"],
            "rate_limit": "execution_count",
            "rate_limit_resource": ["R1:4", "R2:2:0"],
            "cache_config": ["local,size=1000000"],
            "disable_auto_complete_config": True,
        }
    )
    table = option_table(settings)
    assert cells(table) == [
        ["Option", "Value"],
        ["server_id", "triton"],
        ["server_version", "2.73.0"],
        [
            "server_extensions",
            "classification sequence model_repository model_repository(unload_dependents) schedule_policy"
            " model_configuration system_shared_memory cuda_shared_memory binary_tensor_data parameters"
            " statistics trace logging",
        ],
        ["model_repository_path[0]", str(tmp_path)],
        ["model_repository_path[1]", "s3://bucket/models"],
        ["model_control_mode", "MODE_EXPLICIT"],
        ["startup_models_0", "a"],
        ["startup_models_1", "b"],
        ["strict_model_config", "1"],
        ["model_config_name", ""],
        ["rate_limit", "EXEC_COUNT"],
        ["rate_limit_resource[0]", '{"name":"R1", "count":4 "device":-1}'],
        ["rate_limit_resource[1]", '{"name":"R2", "count":2 "device":0}'],
        ["strict_readiness", "1"],
        ["exit_timeout", "30"],
        ["cache_enabled", "1"],
    ]
    assert len({len(line) for line in table.splitlines()}) == 1


def test_backend_table_has_the_backends_that_serve_models(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "libtriton_own.so").touch()
    settings = from_args(
        {
            "model_repository": str(tmp_path),
            "backend_directory": str(tmp_path),
            "backend_config": ["default-max-batch-size=8", "own,key=value"],
        }
    )
    configs = {"a": model(), "b": model().replace("identity", "own"), "e": CHAIN, "c": model()}
    table = RoutingTable(1, True, tuple(entry(name, config) for name, config in configs.items()))
    common = f'"auto-complete-config":"true","backend-directory":"{tmp_path}","default-max-batch-size":"8"'
    _, identity, native = cells(backend_table(settings, table))
    assert (identity[0], identity[2]) == ("identity", f'{{"cmdline":{{{common}}}}}')
    assert identity[1].endswith("backends/teaching")
    assert native == ["own", str(own / "libtriton_own.so"), f'{{"cmdline":{{{common},"key":"value"}}}}']
