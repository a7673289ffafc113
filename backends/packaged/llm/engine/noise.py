"""The noise that draws are made by: a function of seed, position and token alone."""

from typing import Final

import numpy as np
import torch

_WORDS: Final = 1 << 32
_MOST: Final = 1 - 2**-24
"""The greatest float32 below 1."""


def gumbel(seed: int, position: int, vocabulary: int) -> torch.Tensor:
    """Return noise of Gumbel's distribution for each token, float32 from -2.9 to 22.9.

    The token with the greatest sum of noise and logarithmic probability is drawn by its probability. It stays
    the same where rounding changes probabilities a little, or others are left out: a share of a sum over the
    vocabulary would be another token wherever one before it changes.

    Args:
        seed: of 64 bits.
        position: of the token in its text, from 0.
        vocabulary: the number of tokens; those of a larger one begin with the same noise.
    """
    key = np.array([seed % 2**64, position], np.uint64)
    # Words, because numpy keeps their sequence over its versions; of 32 bits, because great noise of 24 has
    # coarse steps.
    words = np.random.Philox(key=key).random_raw((vocabulary + 1) // 2).astype("<u8", copy=False)
    shares = torch.from_numpy(words.view("<u4")[:vocabulary].astype(np.float32))
    shares.add_(0.5).div_(_WORDS).clamp_(max=_MOST)
    return shares.neg_().log1p_().neg_().log_().neg_()
