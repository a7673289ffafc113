"""Decides which models POLL mode loads and unloads, from successive scans of the repositories. Pure."""

from collections.abc import Mapping


class Poller:
    """Finds models that have changed and then stayed the same for one scan: half-copied ones are not loaded.

    Args:
        handled: the loaded models, each with a fingerprint of its files.
    """

    def __init__(self, handled: Mapping[str, str]) -> None:
        self._handled = dict(handled)
        self._seen = dict(handled)
        self.settling = False
        """Whether the last scan differs from the one before: a change is about to be reported."""

    def observe(self, seen: Mapping[str, str]) -> list[str]:
        """Return the models to load, and to unload where they are not in `seen`.

        Args:
            seen: the fingerprints of this scan, by model. A model is returned when its fingerprint is that of
                the last scan, but not that of its last load.
        """
        changed = [
            name
            for name in sorted({*self._handled, *seen})
            if self._seen.get(name) == seen.get(name) != self._handled.get(name)
        ]
        self.settling = seen != self._seen
        self._seen = dict(seen)
        for name in changed:
            if name in seen:
                self._handled[name] = seen[name]
            else:
                del self._handled[name]
        return changed
