"""Requests that differ from each other, as real ones do, and those of other sizes and kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.repository import STRINGS, STRINGS_ONNX, TWO_STEPS
from benchmarks.workloads import GRPC_TIMEOUT, IDENTITY, Workload, float_workload

HEADS, TENSORS = 3000, 64
"""Variants of headers and of tensors: more than any server knows again."""


def differing_workloads(repository: Path) -> tuple[Workload, ...]:
    """Return what is measured when its name is asked for; models that `repository` lacks are left out."""
    random = np.random.default_rng(1)
    suite = (
        *(floats(repository, name, count) for name, count in (("10KB", 2_560), ("100KB", 25_600))),
        *heads(floats(repository, "heads", 16)),
        *(numbers(repository, random, count) for count in (16, 10_000)),
        two_steps(random),
        *(strings(random, *kind) for kind in (("onnx", STRINGS_ONNX), ("python", STRINGS))),
        replace(
            strings(random, "onnx", STRINGS_ONNX), name="strings_json", binary=False, protocols=("http",)
        ),
    )
    return tuple(each for each in suite if each and (repository / each.model).exists())


def floats(repository: Path, name: str, count: int) -> Workload | None:
    return float_workload(repository, f"identity_{name}", IDENTITY, np.random.default_rng(0), count)


def varied(workload: Workload, variants: Iterator[Workload]) -> Workload:
    """Return a workload that sends the first variant and the others in turn."""
    first, *others = variants
    return replace(first, others=tuple(others), name=workload.name)


def heads(like: Workload | None) -> Iterator[Workload]:
    """Yield workloads whose ids and headers differ."""
    if like is None:
        return
    http = replace(like, name="heads_differ", protocols=("http",))
    yield varied(http, (replace(http, id=f"{i:08x}", headers=traced(i)) for i in range(HEADS)))
    timed = replace(like, name="timeout_differs", protocols=("grpc",))
    limits = (f"{20_000_000 + 997 * i}u" for i in range(HEADS))
    yield varied(timed, (replace(timed, headers={GRPC_TIMEOUT: limit}) for limit in limits))
    named = replace(like, name="metadata_differ", protocols=("grpc",))
    yield varied(named, (replace(named, id=f"{i:08x}", headers=traced(i)) for i in range(HEADS)))


def traced(number: int) -> Mapping[str, str]:
    """Return headers of one traced request; names of gRPC's metadata are in lower case."""
    trace = (number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)
    return {"traceparent": f"00-{trace:032x}-{trace >> 64:016x}-00", "x-request-id": f"{trace:032x}"}


def numbers(repository: Path, random: np.random.Generator, count: int) -> Workload | None:
    """Return requests with numbers as JSON."""
    like = floats(repository, "json", count)
    if like is None:
        return None
    (name,) = like.inputs
    like = replace(like, name=f"json_{count}", binary=False, protocols=("http",))
    arrays = (random.standard_normal((1, count), dtype=np.float32) for _ in range(TENSORS))
    return varied(like, (replace(like, inputs={name: array}) for array in arrays))


def two_steps(random: np.random.Generator) -> Workload:
    """Return requests to an ensemble of two ONNX models."""
    like = Workload("two_steps", TWO_STEPS, {}, ("OUTPUT0", "OUTPUT1"))
    pairs = random.integers(-1000, 1000, (TENSORS, 2, 1, 16), np.int32)
    return varied(like, (replace(like, inputs={"INPUT0": a, "INPUT1": b}) for a, b in pairs))


def strings(random: np.random.Generator, name: str, model: str) -> Workload:
    """Return requests with 100 strings of 20 bytes."""
    like = Workload(f"strings_{name}", model, {}, ("OUTPUT0",))
    letters = random.integers(ord("a"), ord("z"), (TENSORS, 100, 20), np.uint8)
    arrays = (np.array([[row.tobytes() for row in each]], np.object_) for each in letters)
    return varied(like, (replace(like, inputs={"INPUT0": array}) for array in arrays))
