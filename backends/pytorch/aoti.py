"""AOTInductor packages (`torch._inductor.aoti_compile_and_package`): programs compiled to a shared library.

The library reads the memory of its inputs by the shapes for which it was compiled, whatever their shapes are.
It can check them, but then refuses a single row where PyTorch assumed at least two to compile, although it
computes it right. So the bounds are taken out of the library's source, which lies in the package, and checked
here; without the source, the library checks.
"""

import os
import platform
import re
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from app.core.errors import InferError, internal, invalid_arg
from backends.base import Model
from backends.load_locks import loading
from backends.pytorch.flat import Misfit, Program, first_line

_C: Any = torch._C  # these parts have no types; importing torch._inductor would take seconds

_FOLDER: Final = "/data/aotinductor/"
_CHECKS: Final = "AOTI_RUNTIME_CHECK_INPUTS"
_BOUND: Final = re.compile(
    r"input_handles\[(\d+)\]: (unmatched dim value|dim value is too large|dim value is too small"
    r'|unmatched stride value) at (\d+), "\s*<< "expected(?: it)?(?: to be)?(?:: | [<>]= )(\d+)'
)
_TYPE: Final = re.compile(
    r'input_handles\[(\d+)\]: unmatched dtype, "\s*<< "expected: " << \w+ << "\(at::k(\w+)\)'
)
_DTYPES: Final = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
}
_REFUSED: Final = "input_handles["
_ASSUMED: Final = 2
"""PyTorch assumes sizes of at least 2 unless told otherwise; one row is computed right all the same."""

_CPU_FLAGS: Final = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AMX_TILE": "amx_tile",
}
"""Instruction sets as PyTorch writes them into a package, and as Linux lists them."""


class Bounds(NamedTuple):
    """What the library expects of an input: sizes and strides by dimension."""

    exact: dict[int, int]
    most: dict[int, int]
    least: dict[int, int]
    strides: dict[int, int]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return 1 + max((*self.exact, *self.most, *self.least, *self.strides), default=-1)

    @property
    def has_channels_last(self) -> bool:
        """Whether the input is an image whose channels lie beside each other in memory."""
        return self.rank == 4 and self.strides.get(1) == 1 and self.strides.get(3) != 1

    def shape(self) -> tuple[int, ...]:
        """Return the shape that they allow, -1 for a size that may vary."""
        return tuple(self.exact.get(place, -1) for place in range(self.rank))

    def smallest(self) -> list[int]:
        """Return the smallest shape that meets them."""
        return [self.exact.get(place, self.least.get(place, 1)) for place in range(self.rank)]

    def condition(self, shape: Sequence[int], strides: Sequence[int]) -> str:
        """Return the first condition that a tensor does not meet; "" if it meets all."""
        if len(shape) != self.rank:
            return f"{self.rank} dimensions"
        for place, size in enumerate(shape):
            if size != self.exact.get(place, size):
                return f"size {self.exact[place]} at dimension {place}"
            if size > self.most.get(place, size):
                return f"size at most {self.most[place]} at dimension {place}"
            if size < self.least.get(place, size):
                return f"size at least {self.least[place]} at dimension {place}"
        for place, stride in self.strides.items():
            if shape[place] > 1 and strides[place] != stride:
                return f"stride {stride} at dimension {place}"
        return ""


def bounds_of(source: str, count: int) -> list[Bounds] | None:
    """Read the bounds of each input out of a library's source; None where an input has none there."""
    found = [Bounds({}, {}, {}, {}) for _ in range(count)]
    for number, what, dimension, value in _BOUND.findall(source):
        if int(number) >= count:
            return None
        bounds = found[int(number)]
        kind = {"dim value is too large": bounds.most, "unmatched dim value": bounds.exact}
        target = kind.get(what, bounds.least if "small" in what else bounds.strides)
        if target is not bounds.least or int(value) > _ASSUMED:
            target[int(dimension)] = int(value)
    known = {int(number) for number, _ in _TYPE.findall(source)}
    return found if known >= set(range(count)) else None


def dtypes_of(source: str, count: int) -> list[Any]:
    """Read the data type of each input out of a library's source; None for one that is not there."""
    kinds = {int(number): _DTYPES.get(kind) for number, kind in _TYPE.findall(source)}
    return [kinds.get(number) for number in range(count)]


class Package(Program):
    """A loaded package."""

    failure = 'Inductor model instance "{}" execution failure'

    def __init__(self, loader: Any, source: str) -> None:
        arguments, results = loader.get_call_spec()
        super().__init__(arguments, results, ())
        self.dtypes = dtypes_of(source, len(self.arguments))
        self._boxed_run = loader.boxed_run
        self._has_run = False
        self._bounds = bounds_of(source, len(self.arguments))
        if self._bounds is not None:
            self.shapes = [bounds.shape() for bounds in self._bounds]
        self._reordered = [place for place, each in enumerate(self._bounds or ()) if each.has_channels_last]

    @staticmethod
    def open(path: Path, model: Model, device: torch.device | None, instances: int) -> "Package":
        """Return the package of a file.

        Args:
            path: the file.
            model: for errors.
            device: where it is to run; None for the one that it was compiled for.
            instances: how many share it and run it at the same time.

        Raises:
            InferError: INVALID_ARG for a package of another kind of machine, INTERNAL with PyTorch's message.
        """
        try:
            name, source = _checked(path, model, device)
            index = device.index if device is not None and device.type == "cuda" else -1
            loader = _C._aoti.AOTIModelPackageLoader(str(path), name, False, instances, index)
            return Package(loader, source)
        except InferError:
            raise
        except Exception as error:
            raise _failed(model, error) from error

    @staticmethod
    def inspect(path: Path, model: Model) -> None:
        """Check the package of a file, without loading its library.

        Raises:
            InferError: as `open`.
        """
        try:
            _checked(path, model, None)
        except InferError:
            raise
        except Exception as error:
            raise _failed(model, error) from error

    def run_checked(self, leaves: list[Any]) -> Sequence[Any]:
        leaves = self._in_order(leaves)
        for number, (bounds, leaf) in enumerate(zip(self._bounds or (), leaves, strict=False)):
            if condition := bounds.condition(leaf.shape, leaf.stride()):
                raise Misfit(f"{condition} in {self.arguments[number]}")
        try:
            return self.run(leaves)
        except RuntimeError as error:
            if not str(error).startswith(_REFUSED):
                raise
            raise Misfit(f"other shapes ({first_line(error)})") from error

    def run(self, leaves: list[Any]) -> Sequence[Any]:
        if self._has_run:
            results: Sequence[Any] = self._boxed_run(self._in_order(leaves))
            return results
        return self._run_first(leaves)

    def _run_first(self, leaves: list[Any]) -> Sequence[Any]:
        """Run when the library reads from the process's environment whether it checks its inputs."""
        with loading("torch"), _checking() if self._bounds is None else nullcontext():
            results: Sequence[Any] = self._boxed_run(self._in_order(leaves))
        self._has_run = True
        return results

    def example(self) -> list[Any]:
        known = zip(self._bounds or (), self.dtypes, strict=False)
        return [torch.zeros(bounds.smallest(), dtype=dtype) for bounds, dtype in known]

    def _in_order(self, leaves: list[Any]) -> list[Any]:
        for place in self._reordered:
            leaves[place] = leaves[place].contiguous(memory_format=torch.channels_last)
        return leaves


@contextmanager
def _checking() -> Iterator[None]:
    """Have libraries that run for the first time check their inputs, and no others of this process."""
    before = os.environ.get(_CHECKS)
    os.environ[_CHECKS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CHECKS]
        else:
            os.environ[_CHECKS] = before


def unfit(metadata: Mapping[str, str], device: torch.device | None, flags: Collection[str]) -> str:
    """Return why a package cannot run on this machine; "" if nothing says so.

    Args:
        metadata: what PyTorch wrote into the package.
        device: the device of the instance; None for any.
        flags: instruction sets of this CPU, as Linux lists them; none if they are not known.
    """
    made_for = metadata.get("AOTI_DEVICE_KEY", "")
    if device is not None and made_for and made_for != device.type:
        return f"was compiled for device '{made_for}', the instance runs on '{device.type}'"
    machine = metadata.get("AOTI_MACHINE", ""), metadata.get("AOTI_PLATFORM", "")
    here = platform.machine(), sys.platform
    if all(machine) and machine != here:
        return f"was compiled for {' '.join(machine)}, this is {' '.join(here)}"
    missing = _missing(metadata.get("AOTI_CPU_ISA", "").upper().split(), flags)
    return f"was compiled for a CPU with {', '.join(missing)}, which this one has not" if missing else ""


def _missing(sets: Iterable[str], flags: Collection[str]) -> list[str]:
    return [each for each in sets if flags and each in _CPU_FLAGS and _CPU_FLAGS[each] not in flags]


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split() for line in lines if line.startswith("flags")), ()))


def _advice() -> str:
    return (
        "A package runs only with the version of PyTorch, the kind of device and the instruction set that it"
        f" was compiled for: compile it here, with PyTorch {torch.__version__}, or serve the exported program"
        " (torch.export.save)"
    )


def _failed(model: Model, error: Exception) -> InferError:
    return internal(f"failed to load model '{model.name}': {first_line(error)}. {_advice()}")


def _checked(path: Path, model: Model, device: torch.device | None) -> tuple[str, str]:
    """Return the contents of a package that fits this machine."""
    name, source = _contents(path)
    metadata = _C._aoti.AOTIModelPackageLoader.load_metadata_from_package(str(path), name)
    if misfit := unfit(metadata, device, _cpu_flags()):
        raise invalid_arg(f"failed to load model '{model.name}': '{path.name}' {misfit}. {_advice()}")
    return name, source


def _contents(path: Path) -> tuple[str, str]:
    """Return the name of the model in a package, which PyTorch calls "model", and its library's source."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, name.partition(_FOLDER)[2]) for name in archive.namelist() if _FOLDER in name]
        models = sorted({inside.partition("/")[0] for _, inside in members})
        model = "model" if "model" in models else models[0]
        mine = [name for name, inside in members if inside.startswith(f"{model}/")]
        sources = [name for name in mine if name.endswith(".cpp")]
        return model, "\n".join(archive.read(name).decode(errors="replace") for name in sources)
