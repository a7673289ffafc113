"""What feedback says of an answer, record by record."""

import numpy as np
import pytest

from app.core.feedback.records import Feedback
from app.feedback.scoring import Unusable, score_of
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor


def test_no_label_at_all_says_nothing_of_an_answer() -> None:
    values = np.ones((2, 3), "<f4").tobytes()  # it stopped the joining of all other records of its node
    output = TapeTensor("OUT", "FP32", (2, 3), values, len(values))
    answered = Row(1, 1, "ab", 1, "simple", responses=(TapeResponse(1, (output,), final=True),))
    with pytest.raises(Unusable, match="not as many labels as rows"):
        score_of(answered, Feedback(id="r1", label=[]))
