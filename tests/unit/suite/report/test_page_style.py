"""Colours of the page: they are of one palette, and stand out."""

from __future__ import annotations

import re

import pytest

from tests.unit.suite.report.page_texts import PAGE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_edges_stand_out_from_their_ground_in_both_schemes(scheme: str) -> None:
    colours = palette(scheme)
    pairs = [(front, back) for front in ("text", "accent", "quiet") for back in ("ground", "panel")]
    for front, back in (*pairs, ("text", "caveat")):
        assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
    assert contrast(colours["edge"], colours["ground"]) >= 3


def test_style_has_no_colour_outside_the_palette() -> None:
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    body = style[style.index("* { box-sizing") :]
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\s])", body) == ["#ffffff"]  # the card of a figure
    used = set(re.findall(r"var\(--(\w+)\)", body))
    assert used == set(palette("light"))


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def palette(scheme: str) -> dict[str, str]:
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", style)
    return {name: light if scheme == "light" else dark for name, light, dark in found}


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio of two sRGB colours."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
