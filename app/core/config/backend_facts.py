"""What configurations depend on of their backends, which say it (`backends/description.py`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class ModelFormat(NamedTuple):
    """A form of a model's file.

    Attributes:
        file_name: `default_model_filename` of models that name no other.
        platform: that of such models; "" for none.
        old_platform: another name of the platform, which Triton takes too.
        directory: whether it is a directory; None for either.
        named_only: such a file alone says nothing of the backend, which the configuration has to name.
        named_for_backend: a configuration gets its name only where it names the backend alone (Triton's way
            with TorchScript); else the backend finds it.
        missing: the error of a load without the file.
    """

    file_name: str
    platform: str = ""
    old_platform: str = ""
    directory: bool | None = False
    named_only: bool = False
    named_for_backend: bool = False
    missing: str = "unable to find '{path}' for model instance '{model}'"


@dataclass(frozen=True, kw_only=True)
class BackendFacts:
    """Facts of a backend that are known without importing it; none of one without a description.

    Attributes:
        name: as configurations have it.
        formats: of its models' files; the first is assumed where there is none of them.
        first_by_default: whether that is assumed of a configuration that names the backend alone.
        order: of two backends whose files a model has, that of the lower number is meant (Triton's order).
        uses_gpus: whether KIND_AUTO may mean a GPU.
        instances_on_cpu: `count` of an instance group on the CPU that has none.
    """

    name: str
    formats: tuple[ModelFormat, ...] = ()
    first_by_default: bool = True
    order: int = 100
    uses_gpus: bool = True
    instances_on_cpu: int = 1


def platforms(backends: Iterable[BackendFacts]) -> Sequence[str]:
    """Return the platforms of backends, their old names last."""
    formats = [each for backend in backends for each in backend.formats]
    names = [each.platform for each in formats] + [each.old_platform for each in formats]
    return list(dict.fromkeys(filter(None, names)))
