"""A server under every kind of load for some minutes: no wrong answer, and nothing that grows.

After a warm-up of half of the time no process may grow by more than RISE_MIB, but for the process of the
model `leaky`, which has to: a measurement that does not find that leak would find none. The warm-up has to be
that long: glibc keeps what each thread has freed, up to the most it ever held. It begins with requests of so
many looks that the bounded caches of heads and templates are full, which takes the mix half an hour. When the
clients have gone everything they held is released: descriptors, threads, and every slab of shared memory,
without which an arena does not give its memory back.

Models come and go in the warm-up only: what Ray keeps of each load is measured by `tests.long.reloads`.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import psutil
import tritonclient.grpc
import tritonclient.http

from tests.long.client import Client, tensors
from tests.long.mix import KINDS, LEAK, Mix
from tests.long.outcomes import Ledger
from tests.long.processes import Growth, Snapshot, Watch, snapshot
from tests.long.server import say, started

RISE_MIB: Final = 8.0
FILES: Final = 16
"""Descriptors that an idle process may have more of than when it was idle before: pools grow in use."""
THREADS: Final = 8
"""Likewise."""
IDLE_S: Final = 90.0
"""Within which everything has to be released: idle sequences, and arenas after 10 s without use."""
CONTROL: Final = "model leaky:1"
LOOKS: Final = 4200
"""More than an ingress caches of the heads and templates of requests: 11 MiB of them."""


def too_much(grown: list[Growth]) -> Iterator[str]:
    """What is wrong with the growth of the processes; the control is judged the other way round."""
    for each in grown:
        if (each.rise > RISE_MIB) != each.role.startswith(CONTROL):
            yield f"{each.role} ({each.pid}) has grown by {each.rise:.1f} MiB, {each.per_hour:.0f} an hour"
    if not any(each.role.startswith(CONTROL) for each in grown):
        yield f"the negative control was not watched: {CONTROL}"


def left_over(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """What the processes of an idle server have more of than when they were idle before."""
    if after.arena_mib:
        held = {inode: round(mib, 2) for inode, mib in after.arenas.items() if mib}
        yield f"shared memory is still in use, MiB by arena: {held}"
    for pid, now in after.readings.items():
        then = before.readings.get(pid)
        if then is None:
            continue
        if now.files > then.files + FILES:
            yield f"{now.role} ({pid}) has {now.files} descriptors, {then.files} before"
        if now.threads > then.threads + THREADS:
            yield f"{now.role} ({pid}) has {now.threads} threads, {then.threads} before"


def idle(root: psutil.Process) -> Snapshot:
    """Wait until the shared memory is given back, or long enough."""
    give_up = time.monotonic() + IDLE_S
    while (taken := snapshot(root)).arena_mib and time.monotonic() < give_up:
        time.sleep(1)
    return taken


def fill_caches(http: str, grpc: str) -> None:
    """Send requests of so many looks, over both protocols, that the caches of an ingress are full."""
    client = Client(http, grpc, 0)
    for elements in range(1, LOOKS + 1):
        values = {"INPUT0": np.zeros((1, elements), np.float32)}
        client.http.infer("identity", tensors(tritonclient.http, values))
        client.grpc.infer("identity", tensors(tritonclient.grpc, values))
    client.close()


def run(duration: float) -> list[str]:
    """Soak a server; returns what is wrong with it."""
    ledger = Ledger()
    with started(ingress_replicas=1) as (server, _):
        assert server.process is not None
        root = psutil.Process(server.process.pid)
        kinds = (*KINDS, LEAK)
        fill_caches(server.http_url, server.grpc_url)
        with Mix(server.http_url, server.grpc_url, ledger, kinds):
            time.sleep(duration / 2)
        before = idle(root)
        say(f"warm after {ledger.total} requests, {before.arena_mib:.1f} MiB of shared memory in use")
        with Watch(root) as watch, Mix(server.http_url, server.grpc_url, ledger, kinds, managers=0):
            time.sleep(duration / 20)  # what was given back is taken again
            since = time.monotonic()
            time.sleep(duration * 0.45)
        after = idle(root)
        grown = watch.growths(since, duration / 3)
        wrong = [*ledger.failures, *too_much(grown), *left_over(before, after)]
        if not server.ready():
            wrong.append("the server is not ready")
        for line in (*ledger.lines(), *table(grown, before, after)):
            say(line)
        say(f"  at most {max(watch.arena_mib, default=0):.0f} MiB of shared memory in use")
    return wrong


def table(grown: list[Growth], before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Memory of each process under load, and when idle, in MiB."""
    yield f"  {'process':40} {'first':>7} {'last':>7} {'rise':>6} {'an hour':>8}   idle before, after"
    for each in grown:
        then, now = (each.pid in taken.readings and taken.readings[each.pid].uss for taken in (before, after))
        yield (
            f"  {each.role[:32]:32} {each.pid:7} {each.first:7.1f} {each.last:7.1f} {each.rise:6.1f} "
            f"{each.per_hour:8.0f}   {then:.1f} {now:.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.long.soak --seconds 900",
    )
    given = os.environ.get("SOAK_SECONDS") or 900
    parser.add_argument("--seconds", type=float, default=given, help="SOAK_SECONDS, or 900")
    wrong = run(parser.parse_args().seconds)
    for line in wrong:
        say(f"FAILED: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
