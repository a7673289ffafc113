"""`rollout.yaml`: what it means, and what its errors say."""

import os
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.rollout.spec import ErrorRule, RolloutSpec
from deployments.model_store.fingerprint import fingerprint, version_fingerprint
from deployments.model_store.layout import ModelEntry
from deployments.rollout.states.policy import check_outputs, merged, parse_policy, read_policy
from nereid_client.comparison.rules import OutputRule

FAULTS = [
    ("foo: 1", "rollout.yaml: Object contains unknown field `foo`"),
    ("step: {min_secs: 3}", "rollout.yaml: step: Object contains unknown field `min_secs`"),
    ("steps: [1, 200]", "rollout.yaml: steps[1]: Expected `float` <= 100.0"),
    ("steps: [1, 5, 5]", "rollout.yaml: steps: 5 follows 5, but steps must rise"),
    ("steps: 5", "rollout.yaml: steps: Expected `array`, got `int`"),
    ("judge: {errors: {budget: 2}}", "rollout.yaml: judge.errors.budget: Expected `float` < 1.0"),
    ("on_error: both", "rollout.yaml: on_error: Invalid enum value 'both'"),
    ("match: [{header: a, value: 1}]", "rollout.yaml: match[0].value: Expected `str`, got `int`"),
    ("- 1", "rollout.yaml: Expected `object`, got `array`"),
    ("steps: [1", "rollout.yaml: not YAML: while parsing a flow sequence"),
]


@pytest.mark.parametrize(("text", "reason"), FAULTS, ids=[text for text, _ in FAULTS])
def test_a_fault_is_named_by_file_field_and_reason(text: str, reason: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_policy(text)
    assert caught.value.message.startswith(reason)


def test_what_is_not_given_has_its_default() -> None:
    assert parse_policy("") == RolloutSpec()
    policy = parse_policy("steps: [20]\nstep: {min_seconds: 5}\njudge: {latency: }\nsticky: header:user")
    assert policy.steps == (20,) and policy.step.min_requests == 200 and policy.sticky == "header:user"
    assert policy.judge.latency is None and policy.judge.errors == ErrorRule()


def test_a_request_replaces_single_fields_of_a_policy() -> None:
    policy = parse_policy("step: {min_seconds: 5, min_requests: 7}\njudge: {latency: }")
    changed = merged(policy, {"steps": [50], "step": {"min_seconds": 1}, "judge": {"latency": {"ratio": 3}}})
    assert changed.steps == (50,) and changed.step.min_seconds == 1 and changed.step.min_requests == 7
    assert changed.judge.latency is not None and changed.judge.latency.ratio == 3
    with pytest.raises(InferError, match="spec: step: Object contains unknown field `x`"):
        merged(policy, {"step": {"x": 1}})


def test_the_policy_is_read_from_the_model_and_changes_no_version(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    entry = ModelEntry("m", tmp_path, tmp_path / "m", (1,))
    assert read_policy(entry) is None
    before, whole = version_fingerprint(entry, 1), fingerprint(entry)
    (entry.directory / "rollout.yaml").write_text("steps: [30]")
    assert read_policy(entry) == RolloutSpec(steps=(30,))
    assert version_fingerprint(entry, 1) == before, "no version is loaded again"
    assert fingerprint(entry) != whole, "but polling looks at the model again"


def test_a_policy_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "shared").write_text("steps: [30]")
    os.symlink(tmp_path / "shared", tmp_path / "m" / "rollout.yaml")
    assert read_policy(ModelEntry("m", tmp_path, tmp_path / "m")) == RolloutSpec(steps=(30,))


def test_outputs_have_rules_by_their_names() -> None:
    text = 'judge: {output: {margin: 0.5, outputs: {y: {atol: 2, cosine: 0.9}, z: ignore, "*": exact}}}'
    output = parse_policy(text).judge.output
    assert output is not None and output.given and output.min_agreement is None
    assert output.outputs == {"y": OutputRule(atol=2, cosine=0.9), "z": "ignore", "*": "exact"}
    assert parse_policy("judge: {output: }").judge.output is None
    with pytest.raises(InferError, match=r"judge\.output\.outputs\[\.\.\.\]: .* unknown field `atoll`"):
        parse_policy("judge: {output: {outputs: {y: {atoll: 2}}}}")


def test_the_old_measure_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(InferError, match=r"judge\.output\.max_difference: this measure, .* give each output"):
        parse_policy("judge: {output: {max_difference: 0.1}}")


@pytest.mark.parametrize(
    ("rule", "config", "why"),
    [
        ("argmax", ("TYPE_STRING", 3), "BYTES have no largest element"),
        ("ctc", ("TYPE_FP32", 1), "of one element alone none is larger"),
        ("{cosine: 0.9}", ("TYPE_FP32", 1), "vectors of one element have none"),
        ("argmax", ("TYPE_FP32", -1), ""),
        ("{cosine: 0.9, atol: 1}", ("TYPE_FP32", 1), ""),
        ("ignore", ("TYPE_STRING", 1), ""),
    ],
)
def test_a_rule_that_compares_nothing_is_refused(rule: str, config: tuple[str, int], why: str) -> None:
    model = mc.ModelConfig(output=[mc.ModelOutput(name="y", data_type=config[0], dims=[config[1]])])
    policy = parse_policy(f"judge: {{output: {{outputs: {{y: {rule}}}}}}}")
    if why:
        with pytest.raises(InferError, match=f"rollout.yaml: judge.output: .*'y'.*{why}"):
            check_outputs(policy, model)
    else:
        check_outputs(policy, model)
