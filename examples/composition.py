"""A Serve application that calls models of a Nereid server in the same cluster.

    RAY_ADDRESS=... RAY_AUTH_MODE=token python examples/composition.py

Where `nereid` has started the cluster: RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 too (docs/operate/ports.md).

`Calculator` adds numbers with the example model `simple` and squares them with the decoupled `square_int32`.
"""

from typing import Any

import numpy as np
from ray import serve

from nereid import InferError, model_handle


@serve.deployment
class Calculator:
    def __init__(self) -> None:
        self._simple = model_handle("simple")
        self._repeat = model_handle("square_int32").options(stream=True)

    async def add(self, left: list[int], right: list[int]) -> list[int]:
        inputs = {"INPUT0": np.array([left], np.int32), "INPUT1": np.array([right], np.int32)}
        outputs = await self._simple.remote(inputs, outputs=["OUTPUT0"])
        sums: list[int] = outputs["OUTPUT0"][0].tolist()
        return sums

    async def repeat(self, number: int) -> list[int]:
        responses = self._repeat.remote({"IN": np.array([number], np.int32)})
        return [int(response["OUT"][0]) async for response in responses]

    async def refusal(self) -> tuple[str, str]:
        """Return the error of a request with the wrong shape."""
        try:
            await self._simple.remote({"INPUT0": np.zeros((1, 3), np.int32)})
        except InferError as error:
            return error.code, error.message
        raise AssertionError("a wrong shape was accepted")


def main() -> None:
    application = Calculator.bind()  # type: ignore[attr-defined]
    calculator: Any = serve.run(application, name="calculator", route_prefix=None)
    print(calculator.add.remote([*range(16)], [1] * 16).result())
    print(calculator.repeat.remote(3).result())
    print(calculator.refusal.remote().result())
    serve.delete("calculator")


if __name__ == "__main__":
    main()
