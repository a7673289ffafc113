"""How many requests the stable version of a rollout answers for the candidate."""

from typing import Final

_SHARE: Final = 0.2
_MOST: Final = 100.0


class RescueBudget:
    """The number of requests that may be repeated: a fifth of all, and up to a hundred more at once."""

    def __init__(self) -> None:
        self._left = _MOST
        self._spent = 0
        self.in_vain = 0
        """Repeated requests that failed again."""

    @property
    def empty(self) -> bool:
        """Whether no request may be repeated now."""
        return self._left < 1

    @property
    def mostly_in_vain(self) -> bool:
        """Whether repeating has not helped: what fails is not the candidate alone."""
        return 2 * self.in_vain > self._spent

    @property
    def is_ample(self) -> bool:
        """Whether requests may be repeated that might do without."""
        return self._left > _MOST / 2

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._left + _SHARE, _MOST)

    def spend(self) -> bool:
        """Count a request that is to be repeated; return whether it may be."""
        if self.empty:
            return False
        self._left -= 1
        self._spent += 1
        return True
