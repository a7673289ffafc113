"""Rules of a file."""

import json
from pathlib import Path

import pytest

from nereid_client.comparison.rules import ComparisonRules, OutputRule
from nereid_client.tools.replay.options import ReplayError
from nereid_client.tools.replay.rules import read_rules


def test_rules_of_all_models_and_of_one(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("margin: 0.1\noutputs: {OUT: {atol: 0.5}}\nmodels: {m: {outputs: {OUT: exact}}}\n")
    rules = read_rules(file)
    assert rules.of("other") == ComparisonRules({"OUT": OutputRule(atol=0.5)}, margin=0.1)
    assert rules.of("m").rule("OUT") == "exact"
    file.write_text(json.dumps({"outputs": {"OUT": "ignore"}}))
    assert read_rules(file).of("m").rule("OUT") == "ignore"


def test_rules_of_a_rollout(tmp_path: Path) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text("steps: [5, 50]\njudge: {output: {min_agreement: 0.99, outputs: {OUT: {cosine: 0.9}}}}\n")
    assert read_rules(file).others == ComparisonRules({"OUT": OutputRule(cosine=0.9)}, min_agreement=0.99)
    file.write_text("judge: {}\n")
    assert read_rules(file).others == ComparisonRules()


@pytest.mark.parametrize(
    "text", ["outputs: {OUT: {atoll: 1}}", "outputs: {OUT: {atol: -1}}", "- 1", "", "a: [", "models: 3", "\0"]
)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(ReplayError, match=r"^--rules: .*rules\.yaml: "):
        read_rules(file)
    with pytest.raises(ReplayError, match="No such file"):
        read_rules(tmp_path / "none.yaml")
