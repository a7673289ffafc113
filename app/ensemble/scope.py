"""The ensemble tensors of one request, or of one response of a decoupled step within it."""

from collections.abc import Iterator

from app.core.tensors import Tensor


class TensorScope:
    """Tensors that exist so far, by name; None stands for one that there will never be.

    Each response of a decoupled step opens a scope within that of its request: it sees what is outside, and
    what follows from the response happens inside.
    """

    __slots__ = ("_parent", "_started", "_tensors", "answered", "children")

    def __init__(self, parent: "TensorScope | None" = None) -> None:
        self._parent = parent
        self._tensors: dict[str, Tensor | None] = {}
        self._started: set[int] = set()
        self.children: list[TensorScope] = []
        self.answered = False
        if parent is not None:
            parent.children.append(self)

    def settle(self, name: str, tensor: Tensor | None) -> None:
        """Say what a tensor is."""
        self._tensors[name] = tensor

    def settled(self, name: str) -> bool:
        """Whether it is known what a tensor is."""
        return any(name in scope._tensors for scope in self._outwards())

    def get(self, name: str) -> Tensor | None:
        """A settled tensor."""
        return next(scope._tensors[name] for scope in self._outwards() if name in scope._tensors)

    def begin(self, step: int) -> bool:
        """Mark a step as begun; False when it was, here or further out."""
        if any(step in scope._started for scope in self._outwards()):
            return False
        self._started.add(step)
        return True

    def answer(self) -> bool:
        """Mark that the outputs were sent; False when they were, here or further out."""
        if any(scope.answered for scope in self._outwards()):
            return False
        self.answered = True
        return True

    def inwards(self) -> Iterator["TensorScope"]:
        """This scope and all within it."""
        yield self
        for child in list(self.children):
            yield from child.inwards()

    def close(self) -> None:
        """Forget a scope that has answered, so that its tensors can go."""
        if self._parent is not None and not self.children:
            self._parent.children.remove(self)

    def drop(self) -> None:
        """Undo that scopes within each other hold each other: nothing is looked up in them any more."""
        for child in self.children:
            child.drop()
            child._parent = None

    def _outwards(self) -> Iterator["TensorScope"]:
        scope: TensorScope | None = self
        while scope is not None:
            yield scope
            scope = scope._parent
