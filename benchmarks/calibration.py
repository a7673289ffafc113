"""Compares the speed of this machine with that of the machine that the targets hold for.

python -m benchmarks.calibration
"""

from __future__ import annotations

import socket
import time

REFERENCE_PER_S = 134_000.0
"""Rounds a second of the two-core machine that the targets are meant for."""
SLICES, ROUNDS = 200, 200
TARGETS = {"http simple x32": 35_000.0, "grpc simple x32": 25_000.0}
"""Infer/s, with the ONNX model `simple`."""


def rounds_per_s() -> float:
    """Return the rate of the fastest of many short slices: other load slows only some of them."""
    left, right = socket.socketpair()
    with left, right:
        return ROUNDS / min(one_slice(left, right) for _ in range(SLICES))


def one_slice(left: socket.socket, right: socket.socket) -> float:
    """Return the seconds of `ROUNDS` rounds: a small message through the kernel, and some bytecode on it."""
    message = bytes(256)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        left.send(message)
        received = right.recv(4096)
        fields = {str(number): received[number : number + 4] for number in range(16)}
        b"".join(fields.values())
    return time.perf_counter() - began


def target_lines(reached: dict[str, float]) -> list[str]:
    """Return the calibration, and each target scaled by it beside the rate that was reached."""
    factor = rounds_per_s() / REFERENCE_PER_S
    lines = [f"calibration: this machine is {factor:.2f} times the one of the targets"]
    for cell, target in TARGETS.items():
        if rate := reached.get(cell, 0.0):
            scaled = target * factor
            lines.append(f"{cell}: {rate:,.0f} infer/s, target {scaled:,.0f}: {rate / scaled:.2f}")
    return lines


def main() -> None:
    print(f"{rounds_per_s():,.0f} rounds a second")


if __name__ == "__main__":
    main()
