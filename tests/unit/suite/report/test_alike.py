"""What counts as the same published file: drawings to a hundredth of a point, everything else to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.report.publish import alike

DRAWING = '<svg><path id="p0123456789" d="M 1.5 {x} L 3 4" clip-path="url(#p{name})"/><text>{words}</text></svg>'
PAGE = "<p>{number}</p>" + DRAWING


def files(folder: Path, suffix: str, one: str, other: str) -> tuple[Path, Path]:
    paths = folder / f"one{suffix}", folder / f"other{suffix}"
    for path, text in zip(paths, (one, other), strict=True):
        path.write_text(text)
    return paths


def page(**changes: str) -> str:
    return PAGE.format(**{"number": "0.71469", "x": "2.000001", "name": "abcdef0123", "words": "9e-03 apart"} | changes)


@pytest.mark.parametrize("suffix", [".svg", ".html"])
@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"x": "2"}, True),
        ({"name": "abcdef0124"}, True),
        ({"x": "2.02"}, False),
        ({"words": "misses"}, False),
        ({"number": "0.71470"}, False),
    ],
)
def test_drawings_may_differ_in_their_last_digits_and_text_in_nothing(
    suffix: str, changes: dict[str, str], same: bool, tmp_path: Path
) -> None:
    assert alike(*files(tmp_path, suffix, page(), page(**changes))) is same


def test_tables_are_equal_or_not(tmp_path: Path) -> None:
    assert alike(*files(tmp_path, ".csv", "0.1", "0.1"))
    assert not alike(*files(tmp_path, ".csv", "0.1", "0.10"))
