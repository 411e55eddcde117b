"""How commands end: a user's mistake is a sentence, a bug keeps its traceback."""

import errno
import io
import sys

import pytest
import typer
from pydantic import BaseModel, ValidationError

from suite.records.command_line import (
    FAILED,
    INTERRUPTED,
    USAGE,
    BadOption,
    ShownConsole,
    errors_told,
    only_shown,
    printable,
)
from suite.records.store import StoreError
from systems.registry import UnknownSystem
from workloads import DataError


class Counted(BaseModel):
    count: int


def a_bug():
    Counted(count="many")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadOption("--seed: no"), USAGE),
        (DataError("ids.npy: no"), USAGE),
        (UnknownSystem("no such system"), USAGE),
        (StoreError("cannot write it"), FAILED),
        (OSError(errno.ENOSPC, "No space left on device"), FAILED),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_mistakes_of_users_and_failures_of_files_are_a_sentence(error, code, capsys):
    with pytest.raises(typer.Exit) as ended, errors_told():
        raise error
    assert ended.value.exit_code == code
    said = capsys.readouterr().err
    assert (said.count("\n"), "Traceback" in said) == (1, False)


def test_bug_that_is_a_value_error_keeps_its_traceback():
    for bug, kind in ((a_bug, ValidationError), (lambda: int("x"), ValueError), (lambda: {}["x"], KeyError)):
        with pytest.raises(kind), errors_told():
            bug()


def test_control_characters_and_turned_letters_are_replaced_and_words_of_any_script_stay():
    assert printable("größer\tals\n漢字 é") == "größer als\n漢字 é"
    for nasty in "\x00\x07\x08\r\x1b\x7f\x9b\u202e\u2066\u200f":
        assert printable(f"a{nasty}b") == "a\N{REPLACEMENT CHARACTER}b", hex(ord(nasty))


def test_console_shows_text_of_others_as_text_and_its_own_colours():
    stream = io.StringIO()
    console = ShownConsole(file=stream, force_terminal=True, color_system="standard", highlight=False)
    console.print("\x1b]0;title\x07red", style="red")
    assert stream.getvalue() == "\x1b[31m\N{REPLACEMENT CHARACTER}]0;titlered\x1b[0m\n"


def test_only_what_output_itself_raises_is_a_display_that_failed(monkeypatch, caplog):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with only_shown():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert "standard output fails (Broken pipe)" in caplog.text
    for error in (KeyboardInterrupt, ZeroDivisionError, KeyError):
        with pytest.raises(error), only_shown():
            raise error
