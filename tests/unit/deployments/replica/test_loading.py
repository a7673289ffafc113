"""Loading a model: its configuration is completed and checked, its instances are made."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.environments.prepare import Environment
from deployments.model_store.cache import NodeCache
from deployments.replica import loading
from deployments.replica.loading import load_model
from tests.unit.deployments.served_model_bench import CONFIG, Bench


def test_configuration_is_completed_from_the_model(bench: Bench) -> None:
    model = bench.load('name: "m" backend: "probe"')
    assert model.config.max_batch_size == 8
    assert [spec.name for spec in model.config.input] == ["INPUT0"]
    assert model.config.instance_group[0].count == 1


def test_auto_complete_can_be_disabled(bench: Bench) -> None:
    model = bench.load('name: "m" backend: "probe"', auto_complete=False)
    assert "auto_complete" not in bench.backend.calls
    assert (model.config.max_batch_size, len(model.config.input)) == (0, 0)


def test_unservable_configuration_is_refused(bench: Bench) -> None:
    with pytest.raises(InferError, match="unable to find backend library for backend 'nonesuch'"):
        load_model(bench.spec(CONFIG.replace("probe", "nonesuch")), bench.plane)
    with pytest.raises(InferError, match="has kind KIND_GPU but no GPUs are available"):
        load_model(bench.spec(CONFIG + "instance_group { kind: KIND_GPU }"), bench.plane)


def test_metric_that_cannot_be_customized_is_warned_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    control = 'metric_control { metric_identifier { family: "%s" } histogram_options { buckets: 1 } } '
    known, unknown = (
        control % "nv_inference_first_response_histogram_ms",
        control % "nv_inference_request_success",
    )
    bench.load(f"{CONFIG} model_metrics {{ {known} {unknown} }}")
    (warning,) = [record.getMessage() for record in caplog.records if "customizable" in record.getMessage()]
    assert warning == (
        "Metric family 'nv_inference_request_success' in 'metric_identifier' is not a customizable metric in "
        "Triton core."
    )


def test_instances_are_named_as_in_triton(bench: Bench) -> None:
    bench.load(CONFIG + 'instance_group [ { count: 2 }, { name: "own" count: 1 } ]')
    loaded = sorted(call[1] for call in bench.backend.calls if call[0] == "load")
    assert loaded == ["m_0_0", "m_0_1", "own_0"]


def test_instance_groups_get_devices(bench: Bench) -> None:
    groups = "instance_group [ { kind: KIND_GPU gpus: [ 1, 0 ] }, { kind: KIND_AUTO }, { kind: KIND_CPU } ]"
    bench.load(CONFIG + groups, gpus=(0, 1))
    loaded = sorted(call[1:] for call in bench.backend.calls if call[0] == "load")
    assert loaded == [
        *(("m_0_0_gpu0", "GPU", 0), ("m_0_0_gpu1", "GPU", 1)),
        *(("m_1_0_gpu0", "GPU", 0), ("m_1_0_gpu1", "GPU", 1)),
        ("m_2_0", "CPU", 0),
    ]


def test_failed_load_undoes_what_was_loaded(bench: Bench) -> None:
    config = (
        CONFIG
        + """
    instance_group { count: 3 }
    parameters { key: "break" value { string_value: "1" } }
    """
    )
    with pytest.raises(InferError, match="the weights are unreadable"):
        bench.load(config)
    assert sorted(call for call in bench.backend.calls if call[0] == "unload") == [
        ("unload", "m_0_0"),
        ("unload", "m_0_2"),
    ]
    assert bench.backend.calls[-2:] == ["model_finalize", "finalize"]


@pytest.mark.parametrize("error", [InferError(ErrorCode.INTERNAL, "unreadable"), OSError("disk full")])
def test_failed_load_releases_its_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    cache = NodeCache(tmp_path / "environments", 1 << 20)
    lease = cache.fill("e", 0, lambda folder: None)
    monkeypatch.setattr(loading, "prepare", lambda model, size: Environment(lease=lease))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(loading, "validate", fail)
    with pytest.raises(type(error), match=str(error)):
        bench.load(CONFIG)
    assert cache.remove("e"), "nothing holds it"
