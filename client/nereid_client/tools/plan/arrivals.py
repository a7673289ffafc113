"""When requests come, and how many rows they have: by chance, or as a tape has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from nereid_client.tape.rows import Row

BLOCK_S: Final = 300.0
"""Stretches of a tape that are drawn: within one, requests come as they did, one after the other."""


class Traffic(NamedTuple):
    """Requests in the order of their arrival.

    Attributes:
        times: seconds since the first.
        rows: of each request.
        rate: requests a second of today, those that were not recorded among them.
    """

    times: Any
    rows: Any
    rate: float


def by_chance(rate: float, number: int, rows: int = 1, seed: int = 0) -> Traffic:
    """Return requests of so many rows that come independently of each other."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, number))
    return Traffic(times, np.full(number, rows), rate)


def recorded(found: Iterable[Row], batched: bool) -> Traffic:
    """Return the requests of a tape.

    Args:
        found: rows of one model, by arrival.
        batched: whether the first dimension of its inputs counts rows.

    Raises:
        ValueError: there are too few.
    """
    times, rows, weights = [], [], []
    for row in found:
        times.append(row.arrived_ns)
        shape = row.inputs[0].shape if row.inputs else ()
        rows.append(shape[0] if batched and shape else 1)
        weights.append(1 / row.probability)
    if len(times) < 2 or times[-1] <= times[0]:
        raise ValueError("the tape has fewer than two requests of this model")
    seconds = (np.array(times) - times[0]) / 1e9
    return Traffic(seconds, np.array(rows), float(sum(weights) / seconds[-1]))


def resampled(traffic: Traffic, rate: float, number: int, seed: int) -> tuple[Any, Any]:
    """Return arrivals and rows of so many requests at another rate, in stretches that are drawn by chance.

    A stretch keeps its rhythm, and is as busy beside the others as it was: one factor brings the mean of the
    whole traffic to the rate.
    """
    random = np.random.default_rng(seed)
    starts = np.arange(0.0, max(traffic.times[-1], 1e-9), BLOCK_S)
    bounds = np.searchsorted(traffic.times, [*starts, np.inf])
    gaps = np.diff(traffic.times, prepend=traffic.times[0])
    chosen_gaps, chosen_rows, count = [], [], 0
    while count < number:
        block = random.integers(len(starts))
        first, end = bounds[block], bounds[block + 1]
        if first == end:
            continue
        if end - first > number:  # a part of it is enough
            first += random.integers(end - first - number + 1)
            end = first + number
        chosen_gaps.append(gaps[first:end])
        chosen_rows.append(traffic.rows[first:end])
        count += end - first
    times = np.cumsum(np.concatenate(chosen_gaps))[:number]
    mean_gap = max(traffic.times[-1], 1e-9) / len(traffic.times)
    return times / (rate * mean_gap), np.concatenate(chosen_rows)[:number]
