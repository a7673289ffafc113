"""What a step gives a model whose keys and values lie in blocks."""

from backends.packaged.llm.openvino.blocks import Blocks, Table, inputs_of


def test_blocks_are_lent_once() -> None:
    blocks = Blocks(2)
    assert blocks.missing(3) == 1
    blocks.add(blocks.missing(3))
    taken = blocks.take(3)
    assert sorted(taken) == [0, 1, 2] and blocks.missing(1) == 1
    blocks.free(taken)
    assert blocks.missing(3) == 0


def test_a_text_needs_a_block_for_each_32_tokens() -> None:
    table = Table(31, [4])
    assert [table.lacks(more) for more in (1, 2, 33, 34)] == [0, 1, 1, 2]


def test_inputs_of_a_step() -> None:
    found = inputs_of([(Table(0, [7, 2]), [1] * 33), (Table(40, [5, 3, 9]), [8])])
    assert found.past_lens.tolist() == [0, 40]
    assert found.subsequence_begins.tolist() == [0, 33, 34]
    assert (found.block_indices.tolist(), found.block_indices_begins.tolist()) == ([7, 2, 5, 3], [0, 2, 4])
    assert found.position_ids.tolist() == [*range(33), 40]
    assert (found.max_context_len.tolist(), found.max_context_len.shape) == (41, ())
    assert found.sampled.tolist() == [32, 33]
