"""What differs between answers."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from nereid_client.comparison.rules import ComparisonRules, OutputRule
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from nereid_client.tools.replay.differences import RESPONSES, Differences, Expected, Noise, noise_of, recorded
from nereid_client.tools.replay.load import Answer, Failed
from nereid_client.tools.replay.plan import plan_of
from nereid_client.tools.replay.rules import Rules
from nereid_client.tools.replay.wire import Outputs
from tests.unit.client.tape.made import row


def out(*values: float, name: str = "OUT") -> TapeTensor:
    data = np.array(values, "<f4").tobytes()
    return TapeTensor(name, "FP32", (len(values),), data, len(data))


def answered(number: int, *responses: Outputs, **changed: Any) -> Row:
    made = tuple(TapeResponse(1, outputs, final=True) for outputs in responses)
    return row(number, responses=made, **changed)


def found(rows: Iterable[Row], answers: list[Answer | None], rules: Rules | None = None) -> Differences:
    rows = list(rows)
    differences = Differences(rules or Rules())
    for planned, each, answer in zip(plan_of(rows).rows, rows, answers, strict=True):
        differences.add(planned, recorded(each), answer)
    return differences


def test_rows_that_differ_are_named() -> None:
    rows = [answered(number, (out(1.0),), id=f"r{number}") for number in range(500)]
    answers: list[Answer | None] = [[(out(1.0),)] for _ in rows]
    answers[137] = [(out(2.0),)]
    differences = found(rows, answers)
    assert differences.compared == 500 and [each.id for each in differences.rows] == ["r137"]
    assert differences.rows[0].why == "OUT: values, by up to 1, 100.00% of the elements"
    comparison = differences.models["simple"]
    assert comparison.worst[0].row == "r137 (ab-137)" and comparison.outputs["OUT"].faults == {"values": 1}


def test_failures_are_told_apart() -> None:
    failed = row(2, responses=(TapeResponse(1, code="INTERNAL", error="why", final=True),))
    rows = [answered(1, (out(1.0),)), failed, failed, answered(4, (out(1.0),)), answered(5)]
    good: Answer = [(out(1.0),)]
    answers = [Failed("gRPC status 13: now", True), Failed("why", True), good, None, good]
    differences = found(rows, answers)
    assert differences.apart == {
        "failed before, failed again": 1,
        "failed before, answered now": 1,
        "not sent: the run ended before": 1,
        "no answer on the tape": 1,
    }
    assert differences.differing == 1 and differences.compared == 0
    assert differences.models["simple"].failed == {"failed: gRPC status 13: now": 1}


def test_what_a_late_generator_has_not_got_is_no_difference() -> None:
    differences = Differences(Rules(), late=True)
    planned = plan_of([answered(1, (out(1.0),))]).rows[0]
    for reached in (False, True):
        differences.add(planned, Expected([(out(1.0),)]), Failed("why", reached))
    assert differences.apart == {"no answer in time, while the generator was late": 1}
    assert [each.why for each in differences.rows] == ["failed: why"]


def test_responses_of_streams_are_counted_and_compared_each() -> None:
    three = answered(1, (out(1.0),), (out(2.0),), (out(3.0),))
    right: Answer = [(out(1.0),), (out(2.0),), (out(3.0),)]
    wrong: Answer = [(out(1.0),), (out(9.0),), (out(3.0),)]
    assert not found([three], [right]).differing
    assert found([three], [wrong]).rows[0].why.startswith("OUT: values")
    assert found([three], [right[:2]]).rows[0].why == f"{RESPONSES}: missing"  # type: ignore[index]
    more: Answer = [*right, (out(4.0),)]  # type: ignore[misc]
    assert found([three], [more]).rows[0].why == f"{RESPONSES}: unexpected"
    cut = answered(1, (out(1.0),), flags=("truncated",))
    assert not found([cut], [right]).differing, "what came behind it is not known"


def test_outputs_that_were_not_kept_are_not_compared() -> None:
    hidden = TapeTensor("TEXT", "BYTES", (1,), b"", 9, "size")
    both = answered(1, (out(1.0), hidden))
    answer: Answer = [(out(1.0), TapeTensor("TEXT", "BYTES", (1,), b"\1\0\0\0x", 5))]
    assert found([both], [answer]).compared == 1 and not found([both], [answer]).differing
    alone = found([answered(1, (hidden,))], [[answer[0][1:]]])  # type: ignore[index]
    assert alone.apart == {"its outputs were not kept on the tape": 1} and not alone.compared


def test_rule_that_is_tighter_than_the_noise_is_refused() -> None:
    plan = plan_of([answered(number, (out(1.0), out(1.0, name="RANDOM"))) for number in range(10)])
    rules = Rules(ComparisonRules({"RANDOM": OutputRule(atol=0.01), "OUT": OutputRule(atol=0.01)}))

    def twice(number: int) -> tuple[Answer, Answer]:
        return [(out(1.0), out(1.0, name="RANDOM"))], [(out(1.0), out(1 + number / 10, name="RANDOM"))]

    noise = noise_of(plan, rules, twice)
    assert noise.rows == 10 and list(noise.refused["simple"]) == ["RANDOM"]
    assert noise.largest["simple"]["OUT"] == 0 and abs(noise.largest["simple"]["RANDOM"] - 0.9) < 1e-6
    (sentence,) = noise.sentences()
    assert "the rule of 'RANDOM' is tighter than the noise: 9 of 10 answers differ, by up to 0.9" in sentence
    kept = noise.rules(rules, ["simple"]).of("simple")
    assert kept.rule("RANDOM") == "ignore" and kept.rule("OUT") == OutputRule(atol=0.01)


def test_noise_of_answers_that_failed_is_not_known() -> None:
    plan = plan_of([answered(1, (out(1.0),))])
    assert noise_of(plan, Rules(), lambda number: (Failed("", True), None)) == Noise(0)


def test_expected_failure_is_the_first_of_a_stream() -> None:
    stream = row(1, responses=(TapeResponse(1, (out(1.0),)), TapeResponse(2, code="INTERNAL", error="why")))
    assert recorded(stream) == Expected(Failed("INTERNAL: why", True))
