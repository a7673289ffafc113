"""A model's weights and tokenizer, loaded by transformers."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read at the import of transformers: nothing is downloaded

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from backends.packaged.llm.engine.generation import ModelFacts
from backends.packaged.llm.int8 import quantize
from backends.transformers_files import listed


def load_model(folder: str, dtype: str, device: torch.device, int8: bool = False) -> Any:
    """Load the weights; code and pickles of the folder are refused.

    Args:
        folder: as `save_pretrained` writes it.
        dtype: of the weights, "auto" as the folder has them.
        device: to compute on.
        int8: have linear layers of 8 bits, and the rest in bfloat16.

    Raises:
        ValueError: tensors are missing or of another shape; transformers would draw them by lot.
    """
    disable_progress_bar()
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="bfloat16" if int8 else dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    _refuse_gaps(folder, type(model).__name__, report)
    if int8:
        quantize(model)
    return model.to(device).eval()


def _refuse_gaps(folder: str, kind: str, report: Mapping[str, Any]) -> None:
    misfits = [
        f"{name} is {list(found)}, not {list(wanted)}" for name, found, wanted in report["mismatched_keys"]
    ]
    parts = [f"it lacks {listed(sorted(report['missing_keys']))}"] if report["missing_keys"] else []
    parts += [f"of another shape: {listed(sorted(misfits))}"] if misfits else []
    if parts:
        raise ValueError(f"'{folder}' has not the weights of a {kind}: {'; '.join(parts)}")


def load_tokenizer(folder: str) -> Any:
    """Load the tokenizer; code of the folder is refused."""
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def model_facts(model: Any, tokenizer: Any, max_model_len: int | None) -> ModelFacts:
    """Return the facts of a model.

    Raises:
        ValueError: it has no limit of its own, or a smaller one than `max_model_len`.
    """
    head = model.get_output_embeddings()
    vocabulary = model.config.get_text_config().vocab_size if head is None else len(head.weight)
    limit = _context_length(model.config, max_model_len)
    return _facts(limit, model.generation_config.eos_token_id, vocabulary, model.device, tokenizer)


def folder_facts(folder: str, vocabulary: int, tokenizer: Any, max_model_len: int | None) -> ModelFacts:
    """Return the facts of a model that transformers has not loaded, by the files of its folder.

    Raises:
        ValueError: see `model_facts`.
    """
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    ends = getattr(config, "eos_token_id", None)
    if os.path.isfile(os.path.join(folder, "generation_config.json")):
        ends = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    limit = _context_length(config, max_model_len)
    return _facts(limit, ends, vocabulary, torch.device("cpu"), tokenizer)


def _facts(limit: int, ends: Any, vocabulary: int, device: torch.device, tokenizer: Any) -> ModelFacts:
    def text_of(tokens: Sequence[int], plain: bool) -> str:
        text: str = tokenizer.decode(tokens, skip_special_tokens=plain, clean_up_tokenization_spaces=False)
        return text

    decode, spell = partial(text_of, plain=True), partial(text_of, plain=False)
    return ModelFacts(limit, _end_tokens(ends, tokenizer), vocabulary, device, decode, spell)


def _context_length(config: Any, wanted: int | None) -> int:
    own: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    length = wanted or own
    if length is None:
        raise ValueError("the model tells no limit of its own: set max_model_len in model.json")
    if own is not None and length > own:
        raise ValueError(f"max_model_len {length} is above the model's {own} positions")
    return length


def _end_tokens(found: Any, tokenizer: Any) -> frozenset[int]:
    if found is None:
        found = tokenizer.eos_token_id
    return frozenset([] if found is None else [found] if isinstance(found, int) else found)
