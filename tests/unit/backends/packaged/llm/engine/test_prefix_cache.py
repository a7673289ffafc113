"""Beginnings of prompts that are read once."""

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

import torch

from backends.packaged.llm.engine.prefix_cache import BLOCK, PrefixCache
from backends.packaged.llm.engine.rows import Row

LAYERS, HEADS, WIDTH = 2, 3, 4
BLOCK_BYTES = LAYERS * 2 * HEADS * WIDTH * 4 * BLOCK


def read(tokens: Sequence[int]) -> Row:
    """Return a row whose keys and values tell its tokens and layers."""
    row = Row(LAYERS)
    for layer in range(LAYERS):
        keys = (torch.tensor(tokens) + 1000.0 * layer)[None, :, None].expand(HEADS, -1, WIDTH)
        row.store(layer, keys, -keys)
    row.length = len(tokens)
    return row


def content(row: Row) -> list[torch.Tensor]:
    return [each for layer in range(LAYERS) for each in row.read(layer, 0, row.length)]


def found(cache: PrefixCache, tokens: Sequence[int], owner: str = "") -> int:
    """Return how many tokens are found, which must have the keys and values that they had."""
    row = Row(LAYERS)
    count = cache.fill(row, tokens, owner)
    assert row.length == count
    if count:
        expected = content(read(tokens[:count]))
        assert all(map(torch.equal, content(row), expected))
    return count


def test_shared_beginnings_are_found_in_whole_blocks() -> None:
    cache = PrefixCache(1 << 30)
    tokens = [*range(200)]
    cache.keep(read(tokens), tokens, "")
    assert found(cache, [*range(150), 7, 8]) == 128
    assert found(cache, tokens) == 192
    assert found(cache, [*range(192)]) == 128  # the last token is read for what follows it
    assert found(cache, [1, *range(1, 200)]) == 0
    assert found(cache, [*range(64), 9, *range(65, 200)]) == 64
    assert (cache.queries, cache.hits) == (152 + 200 + 192 + 200 + 200, 128 + 192 + 128 + 64)


def test_row_keeps_only_what_it_has_read() -> None:
    cache = PrefixCache(1 << 30)
    row = read([*range(130)])
    cache.keep(row, [*range(500)], "")
    assert found(cache, [*range(500)]) == 128


def test_others_do_not_find_it() -> None:
    cache = PrefixCache(1 << 30)
    tokens = [*range(100)]
    cache.keep(read(tokens), tokens, "a")
    assert (found(cache, tokens, "a"), found(cache, tokens, "b")) == (64, 0)


def test_least_recently_used_are_dropped() -> None:
    cache = PrefixCache(3 * BLOCK_BYTES)
    prompts = [[number] * 65 for number in range(4)]
    for prompt in prompts[:3]:
        cache.keep(read(prompt), prompt, "")
    assert found(cache, prompts[0]) == BLOCK
    cache.keep(read(prompts[3]), prompts[3], "")
    assert [found(cache, prompt) for prompt in prompts] == [BLOCK, 0, BLOCK, BLOCK]
    assert cache.bytes == 3 * BLOCK_BYTES


@pytest.mark.parametrize("room", [0, BLOCK_BYTES - 1])
def test_cache_without_room_keeps_nothing(room: int) -> None:
    cache = PrefixCache(room)
    cache.keep(read([*range(100)]), [*range(100)], "")
    assert (found(cache, [*range(100)]), cache.bytes) == (0, 0)


@torch.inference_mode()
def test_found_row_goes_on_without_changing_what_is_kept() -> None:
    cache = PrefixCache(1 << 30)
    tokens = [*range(100)]
    cache.keep(read(tokens), tokens, "")
    row = Row(LAYERS)
    cache.fill(row, tokens, "")
    row.store(0, torch.zeros(HEADS, 5, WIDTH), torch.zeros(HEADS, 5, WIDTH))
    row.length += 5
    row.read(0, 0, 5)[0].zero_()
    assert found(cache, tokens) == BLOCK
