"""Directories of models that have files and no content."""

from pathlib import Path

KEY = bytes(32)
CONFIG = 'backend: "identity" max_batch_size: 4\n'


def add(repository: Path, name: str, config: str = CONFIG, versions: tuple[int, ...] = (1,)) -> Path:
    directory = repository / name
    directory.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (directory / str(version)).mkdir(exist_ok=True)
    (directory / "config.pbtxt").write_text(config)
    return directory
