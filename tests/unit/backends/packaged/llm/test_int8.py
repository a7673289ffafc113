"""Weights of 8 bits: near those that they stand for, whatever the shape of what is computed."""

import pytest

pytest.importorskip("torch")

import torch

from backends.packaged.llm.int8 import Int8Linear, quantize


@pytest.mark.parametrize("shape", [(64,), (3, 64), (1, 40, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_what_it_stands_for(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(1)
    layer = torch.nn.Linear(64, 96, bias=bias).to(torch.bfloat16)
    values = torch.randn(shape).to(torch.bfloat16)
    wanted, found = layer(values).float(), Int8Linear(layer)(values)
    assert found.shape == wanted.shape and found.dtype == torch.bfloat16
    assert (found.float() - wanted).norm() < 0.02 * wanted.norm()


def test_an_output_without_weights_is_zero() -> None:
    layer = torch.nn.Linear(32, 32, bias=False).to(torch.bfloat16)
    torch.nn.init.zeros_(layer.weight)
    assert Int8Linear(layer)(torch.ones(2, 32, dtype=torch.bfloat16)).eq(0).all()


def test_linear_layers_of_a_model_are_replaced_at_any_depth() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Embedding(9, 32), inner, torch.nn.Linear(32, 9)).to(torch.bfloat16)
    quantize(model)
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds.count("Int8Linear") == 2 and "Linear" not in kinds
    assert model(torch.tensor([1, 2])).shape == (2, 9)
