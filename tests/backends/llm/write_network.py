"""Writes a model of GPT-2 as `optimum-cli export openvino` does: keys and values are its state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as op

LAYER = "transformer.h.{}.{}"


class Writer:
    """Makes the nodes of a model from its weights."""

    def __init__(self, weights: Mapping[str, Any], heads: int) -> None:
        self.weights = weights
        self.heads = heads
        self.sinks: list[Any] = []
        shape = openvino.PartialShape([-1, -1])
        self.tokens, self.mask, self.places = (
            op.parameter(shape, np.int64, name=name)
            for name in ("input_ids", "attention_mask", "position_ids")
        )
        self.beams = op.parameter(openvino.PartialShape([-1]), np.int32, name="beam_idx")
        parameters = [self.tokens, self.mask, self.places, self.beams]
        for each in parameters:
            each.output(0).get_tensor().set_names({each.get_friendly_name()})
        states = op.add(self._row("wte", self.tokens), self._row("wpe", self.places))
        layers = sum(name.endswith("attn.c_attn.weight") for name in weights)
        for layer in range(layers):
            normal = self._normal(states, LAYER.format(layer, "ln_1"))
            states = op.add(states, self._attention(normal, layer))
            normal = self._normal(states, LAYER.format(layer, "ln_2"))
            inner = op.gelu(self._linear(normal, LAYER.format(layer, "mlp.c_fc")), "tanh")
            states = op.add(states, self._linear(inner, LAYER.format(layer, "mlp.c_proj")))
        head = op.constant(weights["transformer.wte.weight"])
        logits = op.result(op.matmul(self._normal(states, "transformer.ln_f"), head, False, True))
        logits.output(0).get_tensor().set_names({"logits"})
        self.model = openvino.Model([logits], self.sinks, parameters, "gpt2")

    def _row(self, name: str, indices: Any) -> Any:
        return op.gather(op.constant(self.weights[f"transformer.{name}.weight"]), indices, op.constant(0))

    def _linear(self, states: Any, name: str) -> Any:
        product = op.matmul(states, op.constant(self.weights[f"{name}.weight"]), False, False)
        return op.add(product, op.constant(self.weights[f"{name}.bias"]))

    def _normal(self, states: Any, name: str) -> Any:
        scaled = op.mvn(states, op.constant([-1]), True, 1e-5, "inside_sqrt")
        scaled = op.multiply(scaled, op.constant(self.weights[f"{name}.weight"]))
        return op.add(scaled, op.constant(self.weights[f"{name}.bias"]))

    def _attention(self, states: Any, layer: int) -> Any:
        three = op.split(self._linear(states, LAYER.format(layer, "attn.c_attn")), op.constant(-1), 3)
        query, key, value = (self._by_head(three.output(index)) for index in range(3))
        keys = self._with_past(key, f"past_key_values.{layer}.key", f"present.{layer}.key")
        values = self._with_past(value, f"past_key_values.{layer}.value", f"present.{layer}.value")
        mask = op.unsqueeze(op.convert(self.mask, "boolean"), op.constant([1, 2]))
        found = op.scaled_dot_product_attention(query, keys, values, mask, causal=False)
        together = op.reshape(op.transpose(found, op.constant([0, 2, 1, 3])), op.constant([0, 0, -1]), True)
        return self._linear(together, LAYER.format(layer, "attn.c_proj"))

    def _by_head(self, states: Any) -> Any:
        parts = op.reshape(states, op.constant([0, 0, self.heads, -1]), True)
        return op.transpose(parts, op.constant([0, 2, 1, 3]))

    def _with_past(self, states: Any, past: str, present: str) -> Any:
        width = self.weights["transformer.wte.weight"].shape[1] // self.heads
        shape = openvino.PartialShape([-1, self.heads, -1, width])
        none = op.constant(np.zeros((1, self.heads, 0, width), np.float32))
        name = past + present
        kept = op.gather(op.read_value(none, name, np.float32, shape), self.beams, op.constant(0))
        both = op.concat([kept, states], 2)
        self.sinks.append(op.assign(both, name))
        return both


def write_network(weights: Mapping[str, Any], heads: int, folder: Path) -> None:
    """Write openvino_model.xml and openvino_model.bin of weights by the names of transformers."""
    openvino.save_model(Writer(weights, heads).model, folder / "openvino_model.xml", compress_to_fp16=False)
