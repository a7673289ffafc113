"""The ensemble tensors of one request, or of one response of a decoupled step within it."""

from collections.abc import Iterator
from enum import Enum

from app.core.tensors import Tensor


class Absent(Enum):
    """Why an ensemble tensor will never exist."""

    LEFT_OUT = "the client or the model that writes it left it out"
    SKIPPED = "its step does not run"


class TensorScope:
    """The tensors known so far, by name, and those that are known to be absent.

    Each response of a decoupled step opens a scope within that of its request: it sees the tensors of the
    scopes around it, and the steps that follow from the response write into it.
    """

    __slots__ = ("_answered", "_children", "_parent", "_started", "_tensors")

    def __init__(self, parent: "TensorScope | None" = None) -> None:
        self._parent = parent
        self._tensors: dict[str, Tensor | Absent] = {}
        self._started: set[int] = set()
        self._children: list[TensorScope] = []
        self._answered = False
        if parent is not None:
            parent._children.append(self)

    def set(self, name: str, tensor: Tensor | Absent) -> None:
        """Store a tensor, or why it will never exist."""
        self._tensors[name] = tensor

    def is_set(self, name: str) -> bool:
        """Return whether a tensor is known, here or further out."""
        return name in self._tensors or (self._parent is not None and self._parent.is_set(name))

    def get(self, name: str) -> Tensor | None:
        """Return a tensor that is set; None when it is absent."""
        value = self._value(name)
        return None if isinstance(value, Absent) else value

    def is_skipped(self, name: str) -> bool:
        """Return whether a tensor that is set is absent because its step does not run."""
        return self._value(name) is Absent.SKIPPED

    def _value(self, name: str) -> Tensor | Absent:
        if self._parent is None or name in self._tensors:
            return self._tensors[name]
        return self._parent._value(name)

    def mark_started(self, step: int) -> bool:
        """Mark a step as started; return False when it already was, here or further out."""
        if self._has_started(step):
            return False
        self._started.add(step)
        return True

    def mark_answered(self) -> bool:
        """Mark that the outputs were sent; return False when they already were, here or further out."""
        if self._is_answered():
            return False
        self._answered = True
        return True

    def with_descendants(self) -> Iterator["TensorScope"]:
        """Yield this scope and all within it."""
        yield self
        for child in list(self._children):
            yield from child.with_descendants()

    def detach(self) -> None:
        """Remove an answered scope from the one around it, so that its tensors are released."""
        if self._parent is not None and not self._children:
            self._parent._children.remove(self)

    def unlink(self) -> None:
        """Break the reference cycles between scopes; nothing may be looked up in them any more."""
        for child in self._children:
            child.unlink()
            child._parent = None

    def _has_started(self, step: int) -> bool:
        return step in self._started or (self._parent is not None and self._parent._has_started(step))

    def _is_answered(self) -> bool:
        return self._answered or (self._parent is not None and self._parent._is_answered())
