"""What POLL mode does with two looks at the repositories. Pure."""

from collections.abc import Mapping


class Poller:
    """Tells which models changed and have come to rest: what is being copied in is not loaded half."""

    def __init__(self, handled: Mapping[str, str]) -> None:
        """`handled` is what is loaded: a fingerprint by model."""
        self._handled = dict(handled)
        self._seen = dict(handled)

    def observe(self, seen: Mapping[str, str]) -> list[str]:
        """Take the fingerprints of now; return the models to load, or to unload when they are not in `seen`.

        A model is named when it looks as it did at the last call and not as when it was last handled.
        """
        changed = [
            name
            for name in sorted({*self._handled, *seen})
            if self._seen.get(name) == seen.get(name) != self._handled.get(name)
        ]
        self._seen = dict(seen)
        for name in changed:
            if name in seen:
                self._handled[name] = seen[name]
            else:
                del self._handled[name]
        return changed
