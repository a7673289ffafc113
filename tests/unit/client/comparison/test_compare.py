"""Outputs of two answers side by side."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from nereid_client.comparison.compare import MOST, Compared, OutputDifference, compare
from nereid_client.comparison.counts import Comparison, Worst, worst_of
from nereid_client.comparison.rules import ComparisonRules, OutputRule, Rule
from nereid_client.datatypes import NUMPY, encode

NAN, INF = np.nan, np.inf


class Sent(NamedTuple):
    """A tensor by its bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any


def tensor(value: Any, datatype: str = "FP32", name: str = "y") -> Sent:
    array = np.asarray(value, NUMPY[datatype])
    return Sent(
        name, datatype, array.shape, encode(np.ascontiguousarray(array).reshape(array.shape), datatype)
    )


def compared(a: Any, b: Any, rule: Rule | None = None, datatype: str = "FP32", **rules: Any) -> Compared:
    named = {} if rule is None else {"y": rule}
    return compare(ComparisonRules(named, **rules), [tensor(a, datatype)], [tensor(b, datatype)])


def found(a: Any, b: Any, rule: Rule | None = None, datatype: str = "FP32") -> OutputDifference:
    (output,) = compared(a, b, rule, datatype).outputs
    return output


ATOL = OutputRule(atol=0.5)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize(
    ("a", "b", "rule", "fault", "absolute"),
    [
        ([1, 2], [1, 2], ATOL, "", 0.0),
        ([1, 2], [1, 2.5], ATOL, "", 0.5),
        ([1, 2], [1, 2.75], ATOL, "values", 0.75),
        ([100, 200], [101, 202], OutputRule(rtol=0.015625), "", 2.0),
        ([100, 200], [101, 208], OutputRule(rtol=0.015625), "values", 8.0),
        ([0, 1], [-0.0, 1], OutputRule(atol=0), "", 0.0),
        ([NAN, INF, 2], [NAN, INF, 2], ATOL, "", 0.0),
        ([NAN, INF, 2], [NAN, INF, 2.25], ATOL, "", 0.25),
        ([1, 2], [1, NAN], ATOL, "values", MOST),
        ([NAN, 2], [1, 2], ATOL, "values", MOST),
        ([1, 2], [1, INF], ATOL, "values", MOST),
        ([INF, 2], [-INF, 2], ATOL, "values", MOST),
        (4, 5, OutputRule(atol=1), "", 1.0),
        ([[1, 0], [0, 1]], [[1, 0], [1, 0]], OutputRule(cosine=0.5), "cosine", 1.0),
        ([[1, 0], [3, 4]], [[2, 0], [6, 8]], OutputRule(cosine=0.99), "", 4.0),
        ([0, 0], [0, 0], OutputRule(cosine=0.99), "", 0.0),
        ([0, 0], [1, 0], OutputRule(cosine=0.99), "cosine", 1.0),
        ([1, 2, 3, 4], [1, 2, 3, 9], OutputRule(atol=0, share=0.75), "", 5.0),
        ([1, 2, 3, 4], [1, 2, 8, 9], OutputRule(atol=0, share=0.75), "values", 5.0),
        ([1, 2], [1, 2.5], "exact", "values", 0.5),
        ([1, NAN], [1, NAN], "exact", "", 0.0),
        ([1, 2], [7, 9], "argmax", "", 0.0),
        ([1, 2], [9, 7], "argmax", "argmax", 0.0),
        ([1, 1.015625], [9, 7], "argmax", "", 0.0),
        ([2, 1], [NAN, NAN], "argmax", "argmax", 0.0),
        ([2, 1], [2, NAN], "argmax", "argmax", 0.0),
    ],
)
def test_floats_keep_to_their_rule(
    datatype: str, a: Any, b: Any, rule: Rule, fault: str, absolute: float
) -> None:
    output = found(a, b, rule, datatype)
    assert output.fault == fault and output.absolute == pytest.approx(absolute, rel=1e-2)
    assert (output.severity > 1) == bool(fault)


@pytest.mark.parametrize(
    ("a", "b", "fault"),
    [
        ([[0.5], [1e-6]], [[0.52], [5e-6]], ""),  # near 0 a difference is what it is, not a multiple
        ([[0.5], [0.1]], [[0.5], [0.2]], "values"),
        ([3.0, 4.0, 1e-7], [3.1, 4.1, 2e-5], ""),
        ([3.0, 4.0, 0.0], [4.0, 3.0, 0.0], "cosine"),
        ([3.0, 4.0, 0.0], [6.0, 8.0, 0.0], "values"),
        ([[3.0, 4.0], [1e-9, 0]], [[3.0, 4.0], [0, 1e-9]], ""),  # padding, for example
        ([[3.0, 4.0], [0, 0]], [[3.0, 4.0], [3, 4]], "values"),
    ],
)
def test_without_a_rule_floats_may_differ_as_their_shape_says(a: Any, b: Any, fault: str) -> None:
    assert found(a, b).fault == fault


PROBABILITIES = [[0.9, 0.1, 0.0], [0.5, 0.49, 0.01]]


@pytest.mark.parametrize(
    ("a", "b", "disagrees", "near_tie"),
    [
        (PROBABILITIES, [[0.8, 0.2, 0.0], [0.49, 0.5, 0.01]], False, False),
        (PROBABILITIES[1:], [[0.49, 0.5, 0.01]], False, True),
        (PROBABILITIES[1:], PROBABILITIES[1:], False, True),
        ([[0.52, 0.48, 0.0]], [[0.48, 0.52, 0.0]], True, False),
        ([[5.2, 4.8, 0.0]], [[4.8, 5.2, 0.0]], False, False),  # no probabilities: no classes
        ([[0.52, 0.48]], [[NAN, NAN]], False, False),
    ],
)
def test_the_class_of_probabilities_has_to_be_the_same_unless_it_is_a_near_tie(
    a: Any, b: Any, disagrees: bool, near_tie: bool
) -> None:
    both = compared(a, b)
    assert (both.disagrees, both.near_tie) == (disagrees, near_tie)


def test_the_margin_is_in_units_of_the_output() -> None:
    rule = OutputRule(atol=1.0, argmax=True)
    assert compared([5.2, 4.8], [4.8, 5.2], rule, margin=0.3).disagrees
    assert compared([5.2, 4.8], [4.8, 5.2], rule, margin=0.5).near_tie


def test_a_share_of_the_vectors_may_have_another_class() -> None:
    a = np.eye(10) * 0.9 + 0.01
    b = a.copy()
    b[0] = b[0][::-1]
    rule = OutputRule(atol=1.0)
    assert compared(a, b, rule).disagrees
    assert not compared(a, b, OutputRule(atol=1.0, share=0.9)).bad
    assert not compared(a, b, OutputRule(atol=1.0, argmax=False)).bad


@pytest.mark.parametrize("datatype", ["INT8", "UINT8", "INT64", "UINT64"])
def test_integers_are_equal_or_within_their_tolerance(datatype: str) -> None:
    assert found([1, 2], [1, 2], None, datatype).fault == ""
    assert found([1, 2], [1, 3], None, datatype) == OutputDifference("y", "values", 2.0, 1.0, within=0.5)
    assert found([1, 2], [1, 3], OutputRule(atol=1), datatype).fault == ""
    assert found([1, 2], [1, 3], OutputRule(share=0.5), datatype).fault == ""


@pytest.mark.parametrize(
    ("a", "b", "datatype"), [([1, 0], [1, 1], "BOOL"), ([b"a", b"b"], [b"a", b""], "BYTES")]
)
def test_other_types_are_equal_or_not(a: Any, b: Any, datatype: str) -> None:
    assert not compared(a, a, None, datatype).bad
    assert (found(a, b, None, datatype).fault, found(a, b, None, datatype).within) == ("values", 0.5)
    assert found(a, b, OutputRule(share=0.5), datatype).fault == ""
    assert found(a, b, "argmax", datatype).fault == ""


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (tensor(np.ones((2, 2)), name="z"), "missing"),
        (tensor(np.ones((4, 1))), "shape"),
        (tensor(np.ones((2, 2)), "INT32"), "datatype"),
        (Sent("y", "FP32", (2, 2), bytes(3)), "unreadable"),
        (Sent("y", "BYTES", (2, 2), b"abcd"), "datatype"),
    ],
)
def test_what_cannot_be_compared_differs(other: Sent, fault: str) -> None:
    both = compare(ComparisonRules(), [tensor(np.ones((2, 2)))], [other])
    assert both.outputs[0].fault == fault and both.differs and both.severity == MOST


def test_bytes_that_do_not_fit_their_shape_may_be_the_same() -> None:
    odd = Sent("y", "FP32", (2, 2), bytes(3))
    assert not compare(ComparisonRules(), [odd], [odd]).bad


def test_an_output_that_is_not_expected_differs_unless_it_is_to_be_ignored() -> None:
    one, more = tensor([1.0]), tensor([2.0], name="z")
    assert compare(ComparisonRules(), [one], [more, one]).outputs[1].fault == "unexpected"
    for rules in (ComparisonRules({"z": "ignore"}), ComparisonRules({"y": OutputRule(), "*": "ignore"})):
        assert [each.output for each in compare(rules, [one], [more, one]).outputs] == ["y"]
    assert compare(ComparisonRules(), (), ()).outputs == ()


def test_empty_tensors_are_equal() -> None:
    for rule in (None, "exact", "argmax", OutputRule(atol=1, cosine=0.9)):
        assert not compared(np.zeros((0, 3)), np.zeros((0, 3)), rule).bad
        assert not compared(np.zeros((3, 0)), np.zeros((3, 0)), rule).bad


def test_a_difference_is_said_in_words() -> None:
    assert str(compared([1.0, 2.0], [1.0, 3.0], OutputRule(atol=0.5, cosine=0.5))) == (
        "y: values, by up to 1, 50.00% of the elements, cosine 0.99"
    )
    assert str(compared([1.0], [1.0])) == "as expected"


def test_answers_are_counted_by_output_with_the_worst_of_them() -> None:
    comparison = Comparison(ComparisonRules({"y": OutputRule(atol=0.5)}))
    for number in range(100):
        comparison.add(f"r{number}", [tensor([0.0])], [tensor([number / 50])])
    comparison.fail("lost", "connection to its replica lost")
    assert (comparison.compared, comparison.differing, comparison.bad) == (100, 74, 74)
    assert comparison.outputs["y"].faults == {"values": 74}
    assert comparison.outputs["y"].absolute == pytest.approx(1.98)
    assert [each.row for each in comparison.worst[:3]] == ["lost", "r99", "r98"]
    assert len(comparison.worst) == 10
    assert comparison.acceptance().bad == 75 and comparison.acceptance().total == 101


def test_near_ties_speak_neither_for_nor_against() -> None:
    comparison = Comparison(ComparisonRules())
    for _ in range(5):
        comparison.add("", [tensor(PROBABILITIES[1:])], [tensor(PROBABILITIES[1:])])
    comparison.add("", [tensor(PROBABILITIES)], [tensor(PROBABILITIES)])
    assert (comparison.near_ties, comparison.acceptance().total) == (5, 1)


def test_each_row_is_among_the_worst_once() -> None:
    assert worst_of([Worst(2, "a", "x"), Worst(3, "a", "y"), Worst(1, "b", "z")], 2) == [
        Worst(3, "a", "y"),
        Worst(1, "b", "z"),
    ]


def scores(classes: list[int], lead: float = 1.0) -> list[list[float]]:
    """Return steps of three classes, each with a lead."""
    return [[lead if each == best else 0.0 for each in range(3)] for best in classes]


@pytest.mark.parametrize(
    ("b", "same"),
    [
        ([1, 1, 0, 2, 2, 0], True),
        ([1, 0, 0, 0, 2, 0], True),  # other steps, the same text
        ([0, 0, 0, 1, 0, 2], True),
        ([1, 0, 1, 0, 2, 0], False),  # once more
        ([1, 1, 1, 1, 0, 0], False),
        ([0, 0, 0, 0, 0, 0], False),
    ],
)
def test_texts_by_ctc_are_the_same_wherever_their_steps_are(b: list[int], same: bool) -> None:
    compared_texts = compared(scores([1, 1, 0, 2, 2, 0]), scores(b), "ctc")
    assert (compared_texts.bad, compared_texts.near_tie) == (not same, False)
    assert compared_texts.disagrees is not same
    both = [scores([1, 2, 0, 0, 0, 0]), scores(b)]  # of two lines, the other one is as expected
    expected = [scores([1, 2, 0, 0, 0, 0]), scores([1, 1, 0, 2, 2, 0])]
    assert compared(expected, both, "ctc").bad is not same


def test_another_text_by_ctc_may_be_a_near_tie() -> None:
    a, b = scores([1, 1, 0, 2]), scores([1, 1, 0, 1])
    a[3] = [0.0, 0.5, 0.51]
    assert compared(a, b, "ctc").near_tie and not compared(a, b, "ctc").bad
    assert compared(a, b, "ctc", margin=0.005).bad
    assert not compared(a, scores([1, 0, 0, 2]), "ctc").near_tie  # the same text speaks for it


@pytest.mark.parametrize("line", [[0, 0, 0, 0], [1, 0, 2, 0]])
def test_steps_that_are_no_numbers_are_no_text_by_ctc(line: list[int]) -> None:
    known = scores(line)
    assert compared(known, np.full_like(known, NAN), "ctc").bad
    assert not compared(np.full_like(known, NAN), np.full_like(known, NAN), "ctc").bad


def test_ctc_needs_steps() -> None:
    assert not compared([1, 2, 3], [1, 2, 4], "ctc").bad
    assert compared([1, 2, 3], [3, 2, 1], "ctc").bad


BIG = 1 << 62
MASKED = -3.4e38


@pytest.mark.parametrize(
    ("a", "b", "rule", "datatype"),
    [
        (
            [3e38, 1],
            [NAN, 1],
            OutputRule(rtol=0.5),
            "FP32",
        ),  # not within a large tolerance
        ([1, 2, INF], [1, 2, -INF], OutputRule(cosine=0.5), "FP32"),
        ([1.0], [INF], OutputRule(cosine=0.5), "FP32"),
        ([1e200, 0], [0, 1e200], OutputRule(cosine=0.5), "FP64"),  # whose squares are infinite
        ([3e38, 1], [-3e38, 1], OutputRule(cosine=0.5), "BF16"),
        ([1, 2, MASKED], [2, 1, MASKED], None, "FP32"),
        ([BIG], [BIG + 100], OutputRule(atol=10), "INT64"),  # the same as floats
        ([-BIG - BIG], [BIG], OutputRule(atol=1e18), "INT64"),
        ([0], [2**64 - 1], OutputRule(atol=1), "UINT64"),
        ([b"a\0"], [b"a"], None, "BYTES"),
    ],
)
def test_what_has_no_measure_is_not_within_its_rule(a: Any, b: Any, rule: Rule | None, datatype: str) -> None:
    assert found(a, b, rule, datatype).fault
    assert found(a, a, rule, datatype).fault == found(b, b, rule, datatype).fault == ""


@pytest.mark.parametrize(
    ("a", "b", "rule", "datatype"),
    [
        ([[b"cat", b"dog"]], [[b"dog", b"cat"]], "argmax", "BYTES"),
        ([[b"cat", b"dog"]], [[b"dog", b"cat"]], "ctc", "BYTES"),
        ([[1.0], [2.0]], [[5.0], [0.0]], "argmax", "FP32"),
        ([[1.0], [2.0]], [[5.0], [0.0]], "ctc", "FP32"),
        ([[1.0], [2.0]], [[5.0], [-1.0]], OutputRule(cosine=0.9), "FP32"),
        ([1, 2], [2, 1], "ignore", "FP32"),
    ],
)
def test_rule_that_compares_nothing_speaks_for_nobody(a: Any, b: Any, rule: Rule, datatype: str) -> None:
    one = compared(a, b, rule, datatype)
    assert one.near_tie and not one.bad
    counts = Comparison(ComparisonRules())
    for _ in range(10_000):
        counts.count("row", one)
    assert not counts.acceptance().accepted


def test_a_mask_of_another_precision_is_the_same() -> None:
    assert found([1, 2, -3.4028e38], [1, 2, -3.3895e38]).fault == ""
