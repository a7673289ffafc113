"""Weights of 8 bits on the CPU: linear layers that read half of what they would read in bfloat16."""

from typing import Final

import torch

_GREATEST: Final = 127
_MANY: Final = 32
"""Rows from which on it is faster to have the weights in bfloat16 for the time of a product."""


class Int8Linear(torch.nn.Module):
    """A linear layer with weights of 8 bits, and a scale for each output; it computes in bfloat16.

    Attributes:
        weight: int8 of shape [outputs, inputs].
        scales: bfloat16 of shape [outputs].
    """

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, layer: torch.nn.Linear) -> None:
        """Take the weights of a layer."""
        super().__init__()
        given = layer.weight.detach().float()
        scales = (given.abs().amax(1) / _GREATEST).clamp(min=torch.finfo(torch.float32).tiny)
        self.register_buffer("weight", (given / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales.to(torch.bfloat16))
        self.bias = layer.bias

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return [..., outputs] of [..., inputs]."""
        rows = values.reshape(-1, values.shape[-1]).to(torch.bfloat16).contiguous()
        if len(rows) > _MANY:
            found = torch.nn.functional.linear(rows, self.weight.to(torch.bfloat16)) * self.scales
        else:
            found = torch._weight_int8pack_mm(rows, self.weight, self.scales)
        found = found.reshape(*values.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


def quantize(model: torch.nn.Module) -> None:
    """Put layers of 8 bits in place of all linear ones of a model in bfloat16; embeddings stay."""
    for name, child in model.named_children():
        if type(child) is torch.nn.Linear:
            setattr(model, name, Int8Linear(child))
        else:
            quantize(child)
