"""Messages between a worker and its parent."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.records.record import Status
from suite.run.worker import ANSWERS, CellResult, Progress, encode
from tests.faults.cells import tiny_cell
from tests.unit.suite.fabricate import measurement, verification


@settings(max_examples=30)
@given(
    st.builds(Progress, phase=st.text(), step=st.integers(0), steps=st.integers(0))
    | st.builds(CellResult, status=st.sampled_from(Status), reason=st.text(), notes=st.tuples(st.text()))
)
def test_message_is_one_line_and_comes_back_whole(message):
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert ANSWERS.validate_json(line) == message


@pytest.mark.parametrize("value", [0.1, math.nan, -math.inf])
def test_outcome_carries_its_measurement_and_verification_with_numbers_that_json_lacks(value):
    measured = measurement(tiny_cell())
    quality = measured.quality.model_copy(update={"final_loss": value})
    measured = measured.model_copy(update={"quality": quality})
    sent = CellResult(status=Status.OK, verification=verification(difference=1e-9), measurement=measured)
    assert repr(ANSWERS.validate_json(encode(sent))) == repr(sent)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Segmentation fault",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"kind": "progress"}',
        b'{"kind": "outcome", "status": "splendid"}',
        b'{"kind": "gossip", "phase": "train"}',
        b'{"kind": "progress", "phase": "tra',
    ],
)
def test_line_that_is_no_message_is_a_value_error(line):
    with pytest.raises(ValueError):
        ANSWERS.validate_json(line)
