"""Records of requests that have ended: their times and outcomes."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from nereid_client.tools.perf.generator.job import COLUMNS, Rows

_TIMES: Final = 4
"""The columns of a repeated request that are not 0: it has ended well, and is no stream."""
_ENDED: Final = COLUMNS.index("ended")


class Records:
    """Records of requests, taken from time to time.

    Most requests of a closed loop are repeated ones; they are kept in less than a row.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        rows, repeated = array("q"), array("q")
        self._rows, self._repeated = rows, repeated
        self.add, self.repeat = rows.extend, repeated.extend

    def __len__(self) -> int:
        return len(self._rows) // len(COLUMNS) + len(self._repeated) // _TIMES

    def take(self) -> bytes:
        """Return rows of `COLUMNS`, all since the last call: by their ends if any were repeated."""
        rows, repeated = self._rows, self._repeated
        self._clear()
        if not repeated:
            return rows.tobytes()
        whole: Rows = np.zeros((len(repeated) // _TIMES, len(COLUMNS)), np.int64)
        whole[:, :_TIMES] = np.frombuffer(repeated, np.int64).reshape(-1, _TIMES)
        whole = np.concatenate([np.frombuffer(rows, np.int64).reshape(-1, len(COLUMNS)), whole])
        return whole[whole[:, _ENDED].argsort(kind="stable")].tobytes()
