"""Writes OpenVINO's files of this model, by `make chat-model-openvino`: `python -m examples.chat.export`.

What is there already is left alone; `--force` writes it again. `python -m examples.chat.export FOLDER TARGET`
writes those of another model, of a folder as transformers has it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from deployments.environments.packaged import PackagedEnvironments
from examples.chat.build import WEIGHTS

NETWORK: Final = Path(__file__).parent / "openvino/smollm2/1/weights"
_PACKAGES: Final = Path(__file__).with_name("openvino.txt")


def export(source: Path, target: Path) -> None:
    """Have optimum-intel write the files, in an environment beside that of the backend `llm`."""
    lease = PackagedEnvironments().lease("llm")
    if lease is None or not source.exists():
        sys.exit(f"export.py: run 'make chat-model' before; '{source}' or the backend is not there")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with tempfile.TemporaryDirectory() as environment:
            _install(lease.directory, Path(environment))
            command = [f"{environment}/bin/optimum-cli", "export", "openvino", "--model", str(source)]
            options = ["--task", "text-generation-with-past", "--weight-format", "fp32", str(unfinished)]
            offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
            subprocess.run([*command, *options], check=True, env=offline)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    finally:
        lease.release()
        shutil.rmtree(unfinished, ignore_errors=True)


def _install(backend: Path, environment: Path) -> None:
    """Make an environment whose packages come before those of the backend."""
    subprocess.run([f"{backend}/bin/python", "-m", "venv", str(environment)], check=True)
    pip = [f"{environment}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-r", str(_PACKAGES)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (shared,) = backend.glob("lib/python*/site-packages")
    (packages / "backend.pth").write_text(f"{shared}\n")


if __name__ == "__main__":
    match [each for each in sys.argv[1:] if each != "--force"]:
        case [folder, target]:
            export(Path(folder), Path(target))
        case _ if "--force" in sys.argv or not NETWORK.exists():
            print("writing openvino/smollm2/1/weights", flush=True)
            export(WEIGHTS, NETWORK)
