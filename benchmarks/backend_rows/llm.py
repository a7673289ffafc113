"""Texts of the backend beside `generate` of transformers, in one process: one prompt, and eight at once.

It runs where transformers is, which the backend's own environment is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from google.protobuf import text_format
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest, Tensor
from backends.base import Instance, Model
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from benchmarks.backends import Call, Row
from tests.backends.llm.write_model import tokenizer
from tests.unit.backend_harness import Call as Request

TOKENS: Final = 64
PROMPT: Final = "The old man fished alone in a skiff."


def rows() -> Iterable[Row]:
    """Return a row for each number of texts."""
    for count in (1, 8):
        yield Row(f"GPT-2 of 4 layers, {count} texts of {TOKENS} tokens", partial(of_texts, count=count))


def of_texts(folder: Path, count: int) -> tuple[Call, Call]:
    """Serve a model that knows nothing; both sides have as many threads."""
    network, words = write(folder)
    ours = generating(folder, count)
    ids = torch.tensor([words(PROMPT).input_ids] * count)
    options = {"do_sample": False, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "pad_token_id": 0}

    def bare() -> None:
        with torch.inference_mode():
            every = network.generate(ids, attention_mask=torch.ones_like(ids), **options)
        words.batch_decode(every)

    return ours, bare


def write(folder: Path) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Write a random model of 256 units, whose tokens are bytes."""
    torch.manual_seed(1)
    words = tokenizer()
    ends = {"bos_token_id": words.eos_token_id, "eos_token_id": words.eos_token_id}
    shape = {"n_positions": 256, "n_embd": 256, "n_layer": 4, "n_head": 8}
    network = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **shape, **ends)).eval()
    network.save_pretrained(folder / "1" / "weights")
    words.save_pretrained(folder / "1" / "weights")
    (folder / "1" / "model.json").write_text('{"model": "weights"}')
    return network, words


def generating(folder: Path, count: int) -> Call:
    """Load the folder in this process; return a call that has texts generated, as requests of their own."""
    model = Model(text_format.Parse('name: "m" backend: "llm"', mc.ModelConfig()), 1, folder)
    model.common_file = BackendPlace("llm", None).python_file
    kind = find_backend(BackendPlace("llm"))
    model.config = kind.auto_complete(model)
    backend, instance = kind(), Instance(model, "m_0_0")
    backend.model_initialize(model)
    backend.instance_initialize(instance)
    sampling = json.dumps({"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True})
    texts = {"text_input": PROMPT, "sampling_parameters": sampling}
    inputs = tuple(Tensor.from_array(name, np.array([text], np.object_)) for name, text in texts.items())

    def call() -> None:
        requests = [Request(InferRequest("m", "", inputs)) for _ in range(count)]
        backend.instance_execute(instance, requests)
        for request in requests:
            assert request.wait()[0].failure is None

    return call
