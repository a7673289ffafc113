"""Repository agents: the `model_repository_agents` of a configuration, which act before a model is loaded.

Triton loads them as libraries. Only Triton's own `checksum` exists here, whose parameters are the digests of
files: `MD5:<path in the model's directory>`. A model with another agent is refused, because an agent may
decrypt the files or forbid the load.
"""

import hashlib
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from app.core.files.paths import path_inside

_CHECKSUM: Final = "checksum"
_MD5: Final = "MD5:"


def check_agents(config: mc.ModelConfig, directory: Path, version: int) -> None:
    """Run the agents of a model; blocks while files are read.

    Args:
        config: the configuration as declared.
        directory: the model's directory.
        version: the version to load; files of other versions are not checked.

    Raises:
        InferError: INVALID_ARG for an unknown agent, or a file with another digest.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name != _CHECKSUM:
            library = f"libtritonrepoagent_{agent.name}.so"
            raise invalid_arg(f"unable to find '{library}' for repo agent '{agent.name}'")
        for key, expected in agent.parameters.items():
            if not key.startswith(_MD5):
                raise invalid_arg(
                    f"unexpected parameter '{key}' of repo agent 'checksum', expecting 'MD5:<file>'"
                )
            _check_file(directory, key.removeprefix(_MD5), expected, version)


def _check_file(directory: Path, name: str, expected: str, version: int) -> None:
    top = name.split("/", 1)[0]
    if top.isdecimal() and top != str(version):
        return
    path = path_inside(directory, name)
    if path is None:
        raise invalid_arg(f"file '{name}' of repo agent 'checksum' is outside the model's directory")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise invalid_arg(f"failed to open file {name} for its checksum: {error.strerror}") from None
    if found != expected.lower():
        raise invalid_arg(f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {found}")
