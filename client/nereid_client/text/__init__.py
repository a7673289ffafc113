"""Texts to tokens, hidden states to vectors and scores, for Python models.

Needs numpy, and the package tokenizers to encode.

Tokens are INT64 [texts, longest]; hidden states [texts, longest, width]; vectors [texts, width].
"""

from nereid_client.text.pooling import POOLINGS, cosine, normalise, pool, sigmoid
from nereid_client.text.tokenizer import TextError, Tokenizer, Tokens, decode_texts

__all__ = [
    "POOLINGS",
    "TextError",
    "Tokenizer",
    "Tokens",
    "cosine",
    "decode_texts",
    "normalise",
    "pool",
    "sigmoid",
]
