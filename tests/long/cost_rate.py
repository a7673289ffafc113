"""The rate of requests with the account of costs beside that without.

A server's process is faster or slower than another of the same code by a few percent for as long as it lives
(by where its memory lies), and a machine by a tenth from one second to the next: two servers, or turns of
seconds, say nothing of one percent. So one server (the plant `costs-in-turns`) counts the requests of one
turn of 20 ms and not of the next, two by two and in an order of chance. Turns that both count tell what such
a comparison is worth. What the account does in every turn, its looks at the processes, is not in it.
"""

import random
import time
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.job import COLUMNS, End, Endpoint, Job, rows_of
from nereid_client.tools.perf.generator.worker import Workers
from tests.long.cost_servers import body, serving, write_tokens
from tests.long.plants import planted
from tests.server import Server

RATE: Final = 0.99
WIDTH: Final = 0.02
"""Of the interval of a rate that says something."""
CALLERS: Final = (1, 8, 32)
WARM_UP_S, TURN_NS, EDGE_NS = 3.0, 20_000_000, 2_000_000
"""Answers near the ends of a turn may be of requests of another one."""
REQUESTS: Final = 64
"""Requests that differ in their values and their ids."""
Rates = NDArray[np.float64]


def rate(place: Path, seconds: float) -> bool:
    """Compare the rate of requests with the account and without; return whether it is what it must be."""
    (place / "tokens").unlink(missing_ok=True)
    token = write_tokens(place / "tokens")["three"]
    flags = (f"--auth-tokens-file={place / 'tokens'}", f"--cost-directory={place / 'rate'}")
    with (
        planted("costs-in-turns") as (root, env),
        serving(place, False, *flags, root=root, env=env) as server,
        Workers(1) as workers,
    ):
        return all([compared(workers, load(server, token, callers), seconds) for callers in CALLERS])


def load(server: Server, token: str, callers: int) -> Job:
    """Return a load of so many connections."""
    endpoint = Endpoint("http", "127.0.0.1", server.http_port, "/v2/models/same/infer")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    requests = (
        http_request(endpoint, headers, body("same", 1, float(number), str(number)).encode())
        for number in range(REQUESTS)
    )
    return Job(endpoint, tuple(requests), concurrency=callers)


def compared(workers: Workers, job: Job, seconds: float) -> bool:
    """Make requests for so long; say how many were answered in the two kinds of turns."""
    begin = workers.begin([job])
    time.sleep(WARM_UP_S + seconds)
    rows = rows_of(workers.stop())
    ended = rows[:, COLUMNS.index("ended")]
    assert (rows[:, COLUMNS.index("status")] == End.OK).all()
    counted, others = in_turns(ended[ended > begin + int(WARM_UP_S * 1e9)])
    low, ratio, high = interval(counted, others)
    print(
        f"{job.concurrency} connections, {len(counted)} turns each: rate {ratio:.4f} of that without the "
        f"account, surely {low:.4f} to {high:.4f} (at least {RATE}); of counted turns beside others of them "
        "{:.4f} to {:.4f}".format(*interval(counted[::2], counted[1::2])[::2]),
        flush=True,
    )
    return ratio >= RATE and high - low <= WIDTH


def in_turns(ended: NDArray[np.int64]) -> tuple[Rates, Rates]:
    """Return the answers of the turns with the account, and of those without beside them."""
    numbers, places = ended // TURN_NS, ended % TURN_NS
    numbers = numbers[(places > EDGE_NS) & (places < TURN_NS - EDGE_NS)]
    first = (numbers[0] // 2 + 1) * 2
    counts = np.bincount(numbers[numbers >= first] - first)
    pairs = counts[: len(counts) // 2 * 2 - 2].reshape(-1, 2).astype(float)
    second = np.array([zlib.crc32(b"%d" % (first // 2 + pair)) & 1 for pair in range(len(pairs))]) == 0
    return np.where(second, pairs[:, 1], pairs[:, 0]), np.where(second, pairs[:, 0], pairs[:, 1])


def interval(some: Rates, others: Rates) -> tuple[float, float, float]:
    """Return the ratio of the sums of rates, between the ends of its 95% interval (by bootstrap)."""
    number = min(len(some), len(others))
    some, others = some[:number], others[:number]
    draws = np.random.default_rng(random.getrandbits(32)).integers(number, size=(1000, number))
    ratios = some[draws].sum(axis=1) / others[draws].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(some.sum() / others.sum()), float(high)
