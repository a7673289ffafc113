"""Writes the weights and the tokenizer of a GGUF file as `save_pretrained` of transformers has them.

It runs in the environment of the backend `llm`, with `gguf` beside it: `build.py` calls it.
"""

import os
import sys
from pathlib import Path


def main(source: Path, target: Path, packages: str) -> None:
    """Read `source`, and write a folder; `packages` is where `gguf` is."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.append(packages)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    whole = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, quantization_config=whole)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
