"""Texts that fit a grammar: JSON of a schema, a regular expression, one of some texts."""

import json
import threading
from collections.abc import Collection
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer

from backends.packaged.llm.engine.choice import RequestError
from backends.packaged.llm.engine.sampling import Structure


class Guide:
    """Allows the tokens of one text that lead to what its grammar accepts."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits [vocabulary] of other tokens to minus infinity, in place.

        Raises:
            RequestError: the grammar has come to a limit.
        """
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        self._check()
        if not bool(allowed.any()):
            raise RequestError("structured_outputs: no token of the model spells what has to follow")
        logits[: len(allowed)].masked_fill_(allowed.to(logits.device) == 0, -torch.inf)
        logits[len(allowed) :] = -torch.inf

    def chosen(self, token: int) -> bool:
        """Learn of the next token; return whether nothing may follow it.

        Raises:
            RequestError: the grammar has come to a limit.
        """
        self._matcher.consume_token(token)
        self._check()
        stopped: bool = self._matcher.is_stopped()
        return stopped

    def _check(self) -> None:
        if self._matcher.is_error():
            message, _, _ = self._matcher.get_error().partition("\n")  # the state of the parser follows
            raise RequestError(f"structured_outputs: {message[:500]}")


class Guides:
    """Makes guides for the texts of a model."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Collection[int]) -> None:
        """Use a fast tokenizer of transformers.

        Args:
            tokenizer: of the model.
            vocabulary: the number of its logits.
            ends: tokens by which it ends a text.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = sorted(ends)
        self._known: LLTokenizer | None = None
        self._lock = threading.Lock()

    def make(self, structure: Structure) -> Guide:
        """Compile a grammar, within the limits of llguidance and without the interpreter's lock.

        Raises:
            ValueError: it is none.
        """
        matcher = LLMatcher(self._tokens(), _grammar(structure), log_level=0)
        if matcher.is_error():
            raise ValueError(f"structured_outputs is not usable: {matcher.get_error()[:500]}")
        return Guide(matcher)

    def _tokens(self) -> LLTokenizer:
        """Return the tokenizer as llguidance has it, which takes up to a second to make."""
        with self._lock:
            if self._known is None:
                backend = getattr(self._tokenizer, "backend_tokenizer", None)
                if backend is None or not self._ends:
                    raise ValueError("structured_outputs needs a tokenizer.json and an end token")
                self._known = LLTokenizer(backend.to_str(), n_vocab=self._vocabulary, eos_token=self._ends)
            return self._known


def _grammar(structure: Structure) -> str:
    kind, value = structure
    compiled: str
    if kind == "json":
        compiled = LLMatcher.grammar_from_json_schema(value)
    elif kind == "regex":
        compiled = LLMatcher.grammar_from_regex(value)
    else:
        if kind == "choice":
            value = f"start: {' | '.join(map(json.dumps, json.loads(value)))}"
        compiled = LLMatcher.grammar_from_lark(value)
    return compiled
