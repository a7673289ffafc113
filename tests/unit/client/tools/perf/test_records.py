"""Records of requests: whole rows, and those of repeated requests."""

import numpy as np

from nereid_client.tools.perf.generator.job import COLUMNS, End
from nereid_client.tools.perf.generator.records import Records


def taken(records: Records) -> list[list[int]]:
    return np.frombuffer(records.take(), np.int64).reshape(-1, len(COLUMNS)).tolist()


def test_rows_are_taken_once_in_the_order_in_which_they_were_added() -> None:
    records = Records()
    records.add((5, 6, 7, 9, End.LATE, 8, 2))
    records.add((1, 2, 3, 4, End.OK, 0, 0))
    assert taken(records) == [[5, 6, 7, 9, End.LATE, 8, 2], [1, 2, 3, 4, End.OK, 0, 0]]
    assert taken(records) == []


def test_repeated_requests_are_whole_rows_of_good_answers_by_their_ends() -> None:
    records = Records()
    records.repeat((1, 2, 3, 4))
    records.add((4, 4, 4, 6, End.CUT, 0, 0))
    records.repeat((4, 4, 4, 5))
    assert taken(records) == [[1, 2, 3, 4, 0, 0, 0], [4, 4, 4, 5, 0, 0, 0], [4, 4, 4, 6, End.CUT, 0, 0]]
    assert taken(records) == []
