"""Searches over small models: trials in processes of their own, resumption, reports, the next version."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from app.core.errors import InferError
from deployments.model_store.version_file import VERSION_FILE
from deployments.rollout.states.policy import parse_policy
from nereid.engine.engine import Engine
from nereid.optimise import report
from nereid.optimise.command import main
from nereid.optimise.search import STATE, Search, State, fitting, resumed
from nereid.optimise.trials.bounded import Limits
from nereid.optimise.trials.candidates import Candidate, Machine
from nereid.optimise.trials.forms import read_source
from nereid.optimise.trials.rows import OptimiseError, choose
from nereid.optimise.trials.verdict import Outcome, Seen, Wanted
from nereid.optimise.write import policy_of, write
from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tape.reader import Tape

PATIENT = Limits(120.0, 4 << 30)
HERE = "tests.unit.nereid.optimise.networks"


def planted(name: str) -> Candidate:
    return Candidate(name, f"that {name}", "onnxruntime", f"{HERE}:{name}", file="model.onnx")


def search(small: Path, output: Path, limits: Limits = PATIENT) -> Search:
    output.mkdir(exist_ok=True)
    source = read_source(small / "models", "small")
    chosen = choose(Tape(small / "tape"), "small", "1", None, 16, 120)
    wanted = Wanted(0.9, 0.99, 1.0)
    machine = Machine(frozenset({"avx512_bf16"}), frozenset({"onnx"}), gpu=False)
    told = lambda *_: None  # noqa: E731
    return Search(source, small / "tape", chosen, ComparisonRules(), wanted, machine, limits, output, told)


def test_a_wrong_candidate_is_refused_with_its_figures(small: Path, tmp_path: Path) -> None:
    found = search(small, tmp_path).outcome(planted("wrong"))
    assert found.status == "refused" and found.stage == "check"
    assert "rows differ" in found.why and found.seen.bad > 10 and len(found.seen.worst) == 10
    assert found.seen.compared < 120  # the rest could not have changed it


def test_the_same_model_agrees_and_is_no_faster(small: Path, tmp_path: Path) -> None:
    found = search(small, tmp_path).outcome(planted("same"))
    assert not found.seen.bad and found.seen.agreement == 1 and found.seen.compared >= 64
    assert found.seen.noise < 1 and found.seen.present_ms > 0 and found.seen.file_mb > 0


@pytest.mark.parametrize(
    ("name", "limits", "why"),
    [
        ("hangs", Limits(3.0, 4 << 30), "build: ended at its limit of 3 s"),
        ("greedy", Limits(120.0, 1 << 30), "its limit"),
        ("crashes", Limits(120.0, 4 << 30), "build: crashed: SIGSEGV"),
    ],
)
def test_a_candidate_is_ended_by_its_limits(
    small: Path, tmp_path: Path, name: str, limits: Limits, why: str
) -> None:
    found = search(small, tmp_path, limits).outcome(planted(name))
    assert found.status == "failed" and why in found.why


def test_a_candidate_that_does_not_load_says_why(small: Path, tmp_path: Path) -> None:
    missing = Candidate("missing", "", "openvino", file="none.xml")
    found = search(small, tmp_path).outcome(missing)
    assert found.status == "failed" and found.why.startswith("load: ") and "none.xml" in found.why


def test_a_search_goes_on_where_it_was_interrupted(small: Path, tmp_path: Path) -> None:
    own = search(small, tmp_path)
    state = State(own.key())
    gpu = Candidate("gpu", "a GPU", "tensorrt", gpu=True)
    own.run([gpu], state)
    again = resumed(tmp_path, own.key())
    assert again.outcomes == state.outcomes and again.outcomes["gpu"].status == "skipped"
    other = msgspec.structs.replace(own.key(), rows="others")
    assert resumed(tmp_path, other).outcomes == {}
    own.run([gpu], again)
    assert json.loads((tmp_path / STATE).read_text())["outcomes"]["gpu"]["why"].startswith("needs a GPU")


def copied(small: Path, target: Path) -> Path:
    """Copy the repository beside the same tape."""
    import shutil

    shutil.copytree(small / "models", target / "models")
    (target / "tape").symlink_to(small / "tape")
    return target


def test_the_best_one_becomes_the_next_version(small: Path, tmp_path: Path) -> None:
    own = search(copied(small, tmp_path), tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file()}
    own_parameters = {"HINT_BF16": "YES"}
    bf16 = Candidate("openvino-bf16", "", "openvino", parameters=own_parameters, cpu=("avx512_bf16",))
    written = write(own, bf16, Outcome(bf16.name, bf16.about, "fits", "as fast"))
    assert written.version == 2
    model = tmp_path / "models" / "small"
    about = json.loads((model / "2" / VERSION_FILE).read_text())
    assert about["config"]["backend"] == "openvino" and about["cpu_flags"] == ["avx512_bf16"]
    assert about["source"]["version"] == 1 and about["tape"]["rows"] == 120 and about["tools"]
    policy = parse_policy((model / "rollout.yaml").read_text())
    assert policy.tape is not None and policy.tape.required and policy.judge.output is not None
    assert policy.judge.output.min_agreement == 0.9
    assert {path: path.read_bytes() for path in before} == before
    source = read_source(tmp_path / "models", "small", 1)
    again = write(own._replace(source=source), bf16, Outcome("x", "", "fits", ""))
    assert again.version == 3 and any("is there and stays" in each for each in again.sentences)


def test_file_that_cannot_be_copied_is_named(small: Path, tmp_path: Path) -> None:
    own = search(copied(small, tmp_path), tmp_path / "out")
    gone = tmp_path / "models" / "small" / "1" / "gone.txt"
    gone.symlink_to("nowhere")
    bf16 = Candidate("openvino-bf16", "", "openvino", parameters={"HINT_BF16": "YES"})
    said = f"version 2 cannot be written: '{gone}' cannot be copied: .*No such file"
    with pytest.raises(OptimiseError, match=said):
        write(own, bf16, Outcome(bf16.name, bf16.about, "fits", "as fast"))
    assert not [*gone.parents[1].glob(".2*")]


def test_a_server_answers_each_version_by_its_own_form(small: Path, tmp_path: Path) -> None:
    model = copied(small, tmp_path) / "models" / "small"
    (model / "config.pbtxt").write_text((model / "config.pbtxt").read_text() + "version_policy: { all {} }\n")
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes((model / "1" / "model.onnx").read_bytes())
    form = {"config": {"backend": "openvino", "parameters": {"INFERENCE_NUM_THREADS": "1"}}, "cpu_flags": []}
    (model / "2" / VERSION_FILE).write_text(json.dumps(form))
    flags = {"model_repository": [str(tmp_path / "models")], "model_control_mode": "explicit"}
    with Engine.open(**flags, load_model=["small"]) as engine:
        assert engine.config("small", "1").backend == "onnxruntime"
        assert engine.config("small", "2").backend == "openvino"
    (model / "2" / VERSION_FILE).write_text(json.dumps({**form, "cpu_flags": ["no_such_flag"]}))
    refusal = r"version 2 of model 'small' was optimised .* with no_such_flag"
    with Engine.open(**flags) as engine, pytest.raises(InferError, match=refusal):
        engine.load("small")


def test_the_policy_is_one_of_rollouts() -> None:
    text = policy_of(ComparisonRules(outputs={"*": "argmax"}, margin=0.05), 0.999)
    fields = yaml.safe_load(text)
    assert fields["judge"]["output"] == {"outputs": {"*": "argmax"}, "margin": 0.05, "min_agreement": 0.999}
    assert fields["tape"]["requests"] > 2 * 4600


def test_reports_name_each_candidate_and_why(small: Path, tmp_path: Path) -> None:
    own = search(small, tmp_path)
    seen = Seen(100, 100, 3, 5, ratio=1.5, low=1.4, high=1.6, present_ms=2.0, candidate_ms=1.3)
    outcomes = [
        Outcome("int8", "8 bits", "refused", "3 rows differ <b>", "check", seen),
        Outcome("bf16", "bfloat16", "fits", "fast", "check", msgspec.structs.replace(seen, bad=0)),
        Outcome("gpu", "TensorRT", "skipped", "needs a GPU"),
    ]
    state = State(own.key(), {each.name: each for each in outcomes})
    assert [line[0] for line in report.rows(state)] == ["bf16", "int8", "gpu"]
    assert [each.name for each in fitting(state)] == ["bf16"]
    page = report.page("small", ["bf16 is best"], state, [["bf16", "100", "1.5"]])
    assert "3 rows differ &lt;b&gt;" in page and page.count("<svg") == 2 and "needs a GPU" in page


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--only", "int9"], "there is no candidate 'int9' for this model: openvino-f32"),
        (["--version", "7"], "'small' has no version 7"),
        (["--gain", "0.5"], "--gain is from 1 on"),
        (["--where", "colour=red"], "--where"),
    ],
)
def test_wrong_arguments(small: Path, capsys: pytest.CaptureFixture[str], flags: list[str], why: str) -> None:
    command = [str(small / "models" / "small"), "--tape", str(small / "tape"), "--output", str(small / "out")]
    assert main([*command, *flags]) == 2
    assert why in capsys.readouterr().err


def test_ensembles_and_python_models_have_no_other_form(tmp_path: Path) -> None:
    model = tmp_path / "p"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class TritonPythonModel: pass\n")
    (model / "config.pbtxt").write_text('backend: "python"\n')
    with pytest.raises(OptimiseError, match="Python models have instances and batches only"):
        read_source(tmp_path, "p")
    with pytest.raises(OptimiseError, match="there is no model 'q'"):
        read_source(tmp_path, "q")
