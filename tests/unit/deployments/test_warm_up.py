"""Samples that a model executes before it is ready."""

import pytest

from app.core.errors import InferError
from tests.unit.deployments.served_model_bench import CONFIG, Bench

WARMUP = """
model_warmup {
  name: "zeros" batch_size: 3 count: 2
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] zero_data: true } }
}
model_warmup {
  name: "file" batch_size: 1
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] input_data_file: "four" } }
}
model_warmup {
  name: "none" batch_size: 0
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] random_data: true } }
}
"""


def test_warm_up_in_the_thread_that_will_execute(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    (bench.directory / "m" / "warmup").mkdir()
    (bench.directory / "m" / "warmup" / "four").write_bytes(b"four")
    bench.load(CONFIG + "instance_group { count: 2 }" + WARMUP)
    executions = [call[1:] for call in bench.backend.calls if call[0] == "execute"]
    for instance in ("m_0_0", "m_0_1"):
        mine = [ids for thread, ids in executions if thread == instance]
        assert mine == [["warmup zeros"] * 3, ["warmup zeros"] * 3, ["warmup file"]]
    assert "model 'm' instance m_0_0 is running warmup sample 'zeros' for iteration 2" in caplog.messages
    assert bench.statistics()[0].execution_count == 0, "warm-up is nobody's request"


def test_failing_warm_up_fails_the_load(bench: Bench) -> None:
    failing = 'parameters { key: "answer" value { string_value: "error" } }'
    with pytest.raises(InferError) as caught:
        bench.load(CONFIG + failing + WARMUP)
    assert caught.value.message == "failed to run warmup sample 'zeros': a bad input; "
    assert bench.backend.calls[-3:] == [("unload", "m_0"), "model_finalize", "finalize"]


def test_missing_warm_up_data(bench: Bench) -> None:
    with pytest.raises(InferError, match="warmup sample 'file': cannot read 'four': No such file"):
        bench.load(CONFIG + WARMUP)
