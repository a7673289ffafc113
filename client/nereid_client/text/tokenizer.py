"""Texts to tokens by a `tokenizer.json`; needs the package tokenizers."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_TOKENS: Final = 512
"""What encoders of BERT's family have positions for."""
MAX_BYTES: Final = 1 << 20
_PADDINGS: Final = ("[PAD]", "<pad>", "<|endoftext|>")
"""Tokens that pad where the file does not name one."""


class TextError(ValueError):
    """A text that is not tokenised; the message says which and why, and may be sent to the client."""


class Tokens(NamedTuple):
    """Tokens of texts, padded behind to the longest: INT64 [texts, longest] each.

    `mask` is 1 for tokens and 0 behind them; `types` is 1 for the second text of a pair.
    """

    ids: Array
    mask: Array
    types: Array

    @property
    def counts(self) -> Array:
        """The number of tokens of each text, special ones included: INT32 [texts]."""
        counts: Array = self.mask.sum(axis=1, dtype=np.int32)
        return counts


class Tokenizer:
    """The tokenizer of a `tokenizer.json`, as an encoder wants it.

    The padding and truncation that such a file may ask for are those of its training, and not used: padding
    to a fixed length costs time, and makes the number of tokens meaningless.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        max_tokens: int = MAX_TOKENS,
        *,
        truncate: bool = True,
        max_bytes: int = MAX_BYTES,
        multiple: int = 1,
    ) -> None:
        """Read the file, or the `tokenizer.json` of a folder.

        Args:
            max_tokens: of a text or of a pair, special tokens included.
            truncate: whether what is longer is cut; else it is refused.
            max_bytes: of a text: tokens are cut only after all of them are known.
            multiple: lengths are padded to a multiple of this, for more requests of one shape in a batch.

        Raises:
            ValueError: the file cannot be read, or a limit is not positive.
        """
        from tokenizers import Tokenizer as Reader

        if min(max_tokens, max_bytes, multiple) < 1:
            raise ValueError("expected max_tokens, max_bytes and multiple of at least 1")
        path = Path(file)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._reader: Any = Reader.from_file(str(path))
        except Exception as error:  # the package raises nothing more precise
            raise ValueError(f"{path}: {error}") from None
        self._padding = _padding_of(self._reader)
        self._reader.no_padding()
        self._reader.no_truncation()
        self.max_tokens = max_tokens
        self._truncate, self._max_bytes, self._multiple = truncate, max_bytes, multiple
        if truncate:
            self._reader.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of texts.

        Raises:
            TextError: a text is longer than a limit.
        """
        for place, text in enumerate(texts):
            self._check_bytes(place, len(text.encode("utf-8", "replace")))
        return self._tokens(self._reader.encode_batch(texts))

    def encode_pairs(self, first: Sequence[str], second: Sequence[str]) -> Tokens:
        """Return the tokens of pairs, as cross-encoders want them: of query and document.

        Of a pair that is too long the longer text is cut.

        Raises:
            TextError: a pair is longer than a limit.
            ValueError: there are not as many first texts as second ones.
        """
        pairs = list(zip(first, second, strict=True))
        for place, pair in enumerate(pairs):
            self._check_bytes(place, sum(len(text.encode("utf-8", "replace")) for text in pair))
        return self._tokens(self._reader.encode_batch(pairs))

    def tokens(self, ids: Iterable[Sequence[int]]) -> Tokens:
        """Return the tokens of lists of ids, which clients have made: checked, and cut as texts are.

        Raises:
            TextError: an id is unknown, or a list is longer than the limit.
        """
        rows = [np.asarray(row, np.int64) for row in ids]
        known = self._reader.get_vocab_size()
        for place, row in enumerate(rows):
            if row.size and not (row.min() >= 0 and row.max() < known):
                raise TextError(f"text {place} has a token beyond the vocabulary of {known}")
            self._check_tokens(place, row.size)
        cut = [row[: self.max_tokens] for row in rows]
        return self._padded(cut, [np.zeros_like(row) for row in cut])

    def _check_bytes(self, place: int, size: int) -> None:
        if size > self._max_bytes:
            raise TextError(f"text {place} has {size} bytes, which exceeds the limit of {self._max_bytes}")

    def _check_tokens(self, place: int, count: int) -> None:
        if count > self.max_tokens and not self._truncate:
            raise TextError(f"text {place} has {count} tokens, which exceeds the limit of {self.max_tokens}")

    def _tokens(self, encoded: Sequence[Any]) -> Tokens:
        for place, one in enumerate(encoded):
            self._check_tokens(place, len(one.ids))
        return self._padded([one.ids for one in encoded], [one.type_ids for one in encoded])

    def _padded(self, ids: Sequence[Any], types: Sequence[Any]) -> Tokens:
        longest = max((len(row) for row in ids), default=0)
        width = max(1, -(-longest // self._multiple)) * self._multiple
        shape = (len(ids), min(width, max(longest, self.max_tokens)))
        found = Tokens(
            np.full(shape, self._padding, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        )
        for place, (row, kinds) in enumerate(zip(ids, types, strict=True)):
            found.ids[place, : len(row)] = row
            found.mask[place, : len(row)] = 1
            found.types[place, : len(row)] = kinds
        return found


def decode_texts(tensor: Array) -> list[str]:
    """Return the texts of a BYTES tensor of any shape, in order.

    Raises:
        TextError: an element is not UTF-8.
    """
    found = []
    for place, element in enumerate(tensor.ravel().tolist()):
        try:
            found.append(element if isinstance(element, str) else element.decode())
        except UnicodeDecodeError:
            raise TextError(f"text {place} is not UTF-8") from None
    return found


def _padding_of(reader: Any) -> int:
    """Return the id of the token that pads: the file's, a usual one, or 0; the mask hides it."""
    if reader.padding is not None:
        return int(reader.padding["pad_id"])
    known = (reader.token_to_id(token) for token in _PADDINGS)
    return next((int(one) for one in known if one is not None), 0)
