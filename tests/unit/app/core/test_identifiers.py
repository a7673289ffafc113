"""Names of models as Serve has them."""

import pytest

from app.core.identifiers import base_name, deployment_name


@pytest.mark.parametrize("name", ["m", "resnet-50.v2", "a b", "x@2", "50%", "a" * 80])
def test_names_that_serve_can_use_stay(name: str) -> None:
    assert deployment_name(name) == name


@pytest.mark.parametrize("name", ["模型", "é" * 127, "a" * 81, "a" * 255, "a#b", "tab\t", "\x7f"])
def test_other_names_are_replaced_by_short_ones(name: str) -> None:
    made = deployment_name(name)
    assert made.isascii() and made.isprintable() and "#" not in made and len(made) <= 60
    assert deployment_name(made) == made
    assert base_name(name, 3) == f"{made}:3"


def test_no_two_names_are_replaced_by_one() -> None:
    names = ["模型", "模形", "a" * 100, "a" * 101, "a#b", "a_b", "a#c"]
    assert len({deployment_name(name) for name in names}) == len(names)
