"""What command lines take for sizes, workloads and datasets, and how commands end: a mistake is a sentence."""

import errno
import io
import sys
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel, ValidationError

from suite.__main__ import app
from suite.records.command_line import (
    FAILED,
    INTERRUPTED,
    USAGE,
    BadOption,
    ShownConsole,
    errors_told,
    only_shown,
    parse_bytes,
    parse_prepared,
    parse_workloads,
    printable,
)
from suite.records.store import RecordStore, StoreError
from systems.registry import UnknownSystem
from tests.unit.suite.fabricate import record
from workloads import DataError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 1_000_000),
        ("1.5GiB", 3 << 29),
        ("800MB", 800_000_000),
        (" 2 kib ", 2048),
        ("1TiB", 1 << 40),
        ("9007199254740993", 9007199254740993),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_bytes_of_a_size(text, size):
    assert parse_bytes(text, flag="--device-budget") == size


@pytest.mark.parametrize("text", ["", "0.4", "-1GB", "1,5GB", "GiB", "1 XB", "1e9", "nan"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(BadOption, match=r"--device-budget: '.*' is not a size: write 1\.5GiB, 800MB"):
        parse_bytes(text, flag="--device-budget")


def test_workloads_are_taken_in_order_and_once():
    assert parse_workloads("criteo_1tb, avazu,criteo_1tb") == ("criteo_1tb", "avazu")
    assert parse_workloads("avazu,all") == ("avazu", "criteo_kaggle", "criteo_1tb")
    assert parse_workloads("avazu@drift, mlperf_dlrm_v2") == ("avazu@drift", "mlperf_dlrm_v2")


FOLDERS = {"zoo": Path("d/zoo"), "avazu": Path("d/avazu"), "my_shop": Path("d/my_shop")}


def test_prepared_datasets_of_any_name_are_taken_and_all_are_those_that_are_there():
    assert parse_prepared("all", FOLDERS, data_dir=Path("d")) == ("avazu", "my_shop", "zoo")
    assert parse_prepared("zoo,avazu,zoo", FOLDERS, data_dir=Path("d")) == ("zoo", "avazu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_shp", "--data-dir: d holds no my_shp, only avazu, my_shop, zoo; did you mean my_shop"),
        ("criteo_1tb", "holds no criteo_1tb, only .* Make it: python -m workloads prepare criteo_1tb"),
        ("avazu@drift", "--workloads: avazu@drift is a synthetic stream: leave out --data-dir, or the track"),
        ("", "--workloads: none named: give all, or some of avazu, my_shop, zoo"),
    ],
)
def test_dataset_that_is_not_there_is_refused_with_those_that_are(text, message):
    with pytest.raises(BadOption, match=message):
        parse_prepared(text, FOLDERS, data_dir=Path("d"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("criteo", r"--workloads: unknown workload 'criteo': did you mean criteo_\w+"),
        ("zzz", "--workloads: unknown workload 'zzz': known: criteo_kaggle"),
        (" , ", "--workloads: none named: give all, or some of"),
        ("avzu@drift", "--workloads: unknown workload 'avzu': did you mean avazu"),
        ("avazu@drifty", "--workloads: unknown track 'drifty': choose one of drift, or"),
    ],
)
def test_unknown_workload_suggests_near_ones(text, message):
    with pytest.raises(BadOption, match=message):
        parse_workloads(text)


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


class Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "words", ["validate a", "compare a b", "compare a b --fail-if-slower 10%", "report --out a", "doctor --seconds 0.1"]
)
def test_command_whose_output_cannot_be_written_says_so_and_fails(words, tmp_path, monkeypatch, capsys):
    for name, day in (("a", 1), ("b", 2)):
        RecordStore(tmp_path / name).write(record(started_at=f"2026-11-0{day}T12:00:00+00:00"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit, match=str(FAILED)):
        app(words.split())
    assert "error: [Errno 28] No space left on device\n" in capsys.readouterr().err


def test_bug_that_is_a_value_error_keeps_its_traceback():
    class Counted(BaseModel):
        count: int

    bugs = (
        (lambda: Counted(count="many"), ValidationError),
        (lambda: int("x"), ValueError),
        (lambda: {}["x"], KeyError),
    )
    for bug, kind in bugs:
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
