"""The memory in which a process says since when it executes."""

import os
import time

from deployments.model_process.activity import Activity


def test_another_mapping_sees_the_oldest_execution() -> None:
    written = Activity()
    read = Activity(os.dup(written.descriptor))
    first, second = written.cell(), written.cell()
    assert read.began_ns() == 0 and read.busy_s() == 0
    first[0] = time.monotonic_ns() - 2_000_000_000
    second[0] = time.monotonic_ns() - 5_000_000_000
    assert read.began_ns() == second[0] and 5 <= read.busy_s() < 6
    second[0] = 0
    assert 2 <= read.busy_s() < 3
    read.clear()
    assert written.began_ns() == 0
    os.close(read.descriptor)


def test_an_execution_that_has_just_begun_counts() -> None:
    activity = Activity()
    activity.cell()[0] = time.monotonic_ns() + 1_000_000
    assert activity.busy_s() > 0


def test_threads_beyond_the_cells_share_the_last() -> None:
    activity = Activity()
    cells = [activity.cell() for _ in range(600)]
    cells[-1][0] = 7
    assert activity.began_ns() == cells[-2][0] == 7
    assert cells[0][0] == 0


def test_the_memory_is_not_inherited_by_programs() -> None:
    assert not os.get_inheritable(Activity().descriptor)
