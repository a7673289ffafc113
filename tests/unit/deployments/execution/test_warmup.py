"""Samples that a model executes before it is ready."""

import pytest

from app.core.errors import ErrorCode, InferError
from tests.unit.deployments.served_model_bench import CONFIG, Bench

ZEROS = """
model_warmup {
  name: "zeros" batch_size: 3 count: 2
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] zero_data: true } }
}
"""
WARMUP = f"""{ZEROS}
model_warmup {{
  name: "file" batch_size: 1
  inputs {{ key: "INPUT0" value {{ data_type: TYPE_UINT8 dims: [ 4 ] input_data_file: "four" }} }}
}}
model_warmup {{
  name: "none" batch_size: 0
  inputs {{ key: "INPUT0" value {{ data_type: TYPE_UINT8 dims: [ 4 ] random_data: true }} }}
}}
"""


def test_warm_up_in_the_thread_that_will_execute(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    (bench.directory / "m" / "warmup").mkdir()
    (bench.directory / "m" / "warmup" / "four").write_bytes(b"four")
    bench.load(CONFIG + "instance_group { count: 2 }" + WARMUP)
    executions = [call[1:] for call in bench.backend.calls if call[0] == "execute"]
    for instance in ("m_0_0", "m_0_1"):
        assert [ids for thread, ids in executions if thread == instance] == [[""] * 3, [""] * 3, [""]]
    assert "model 'm' instance m_0_0 is running warmup sample 'zeros' for iteration 2" in caplog.messages
    assert bench.report().execution_count == 0, "warm-up is nobody's request"


def test_failing_warm_up_fails_the_load(bench: Bench) -> None:
    failing = 'parameters { key: "answer" value { string_value: "error" } }'
    with pytest.raises(InferError) as caught:
        bench.load(CONFIG + failing + ZEROS)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"failed to run warmup sample 'zeros': {'a bad input; ' * 3}"
    assert bench.backend.calls[-3:] == [("unload", "m_0"), "model_finalize", "finalize"]


def test_missing_warm_up_data(bench: Bench) -> None:
    with pytest.raises(InferError, match=r"failed to open text file for read .*/warmup/four: No such file"):
        bench.load(CONFIG + WARMUP)
    assert [call for call in bench.backend.calls if call[0] == "execute"] == []


def sample(value: str, name: str = "INPUT0", size: int = 1) -> str:
    inputs = f'inputs {{ key: "{name}" value {{ {value} }} }}'
    return f'model_warmup {{ name: "s" batch_size: {size} {inputs} }}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            sample("data_type: TYPE_UINT8 dims: [ -1 ] zero_data: true"),
            "warmup setting expects all variable-size dimensions are specified for input 'INPUT0'",
        ),
        (
            sample("data_type: TYPE_UINT8 dims: [ 4 ]"),
            "[request id: <id_unknown>] warmup setting expects input 'INPUT0' to have input_data_type set",
        ),
        (
            sample("data_type: TYPE_INT32 dims: [ 4 ] zero_data: true"),
            "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'INT32', but model 'm' expects"
            " 'UINT8'",
        ),
        (
            sample("dims: [ 4 ] zero_data: true"),
            "[request id: <id_unknown>] inference input 'INPUT0' data-type is '<invalid>', but model 'm'"
            " expects 'UINT8'",
        ),
        (
            sample("data_type: TYPE_UINT8 dims: [ 4 ] zero_data: true", name="OTHER"),
            "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [],"
            " but missing required input(s) ['INPUT0']. Please provide all required input(s).",
        ),
        (
            sample('data_type: TYPE_UINT8 dims: [ 4 ] input_data_file: "three"'),
            "[request id: <id_unknown>] warmup setting expects 4 bytes, but the data provided from three only"
            " has 3 bytes",
        ),
        (
            sample("data_type: TYPE_UINT8 dims: [ 4 ] zero_data: true", size=9),
            "failed to run warmup sample 's': " + 9 * "batch size 9 for 'm_0', max allowed is 8; ",
        ),
    ],
)
def test_samples_that_do_not_fit(text: str, message: str, bench: Bench) -> None:
    (bench.directory / "m" / "warmup").mkdir()
    (bench.directory / "m" / "warmup" / "three").write_bytes(b"abc")
    with pytest.raises(InferError) as caught:
        bench.load(CONFIG + text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == message


def test_a_file_longer_than_its_tensor(bench: Bench) -> None:
    (bench.directory / "m" / "warmup").mkdir()
    (bench.directory / "m" / "warmup" / "nine").write_bytes(bytes(9))
    text = sample('data_type: TYPE_UINT8 dims: [ 4 ] input_data_file: "nine"', size=2)
    bench.load(CONFIG + text)
    assert [call[2] for call in bench.backend.calls if call[0] == "execute"] == [["", ""]]
