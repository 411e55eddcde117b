"""A record with anything in any place is shown, or named and left out: nothing fails, waits or runs because of it."""

import copy
import io
import json
import shutil

from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from suite.compare.command import show
from suite.compare.compare import compare, read_run
from suite.records.command_line import BadOption
from suite.records.environment import Environment
from suite.records.record import Cell, Record, record_key
from suite.records.store import RecordStore, file_name
from suite.report.publish import read, sheets
from suite.tables.sheet import to_csv, to_markdown
from suite.tables.terminal import render
from suite.validate import check_files, find_files
from tests.unit.suite.fabricate import BASELINE, optimum, record, rounds

STRANGE = (
    *(0, -1, 2**31, 2**63 - 1, 2**63, 10**400, 1e308, -1e308, 5e-324),
    *("NaN", "Infinity", "", "a\nb", "=1", "\x1b[2J", "evil.module:System", "../../up", None, True, [], {}, [[0]]),
)


def places(content, place=()):
    """Every place in a record, but the key's."""
    if isinstance(content, dict | list):
        for name, inner in content.items() if isinstance(content, dict) else enumerate(content[:2]):
            yield from places(inner, (*place, name))
    if place and place != ("key",):
        yield place


def put(content, place, value):
    changed = copy.deepcopy(content)
    at = changed
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    try:  # whoever forges a record forges its key too
        cell, environment = (kind.model_validate(changed[name]) for kind, name in KINDS)
        changed["key"] = record_key(cell, environment)
    except ValueError:
        pass
    return changed


KINDS = ((Cell, "cell"), (Environment, "environment"))
WHOLE = record("cache[policy=lfu]", least=optimum(), alone_steps_per_s=50.0, setting={"turns": 1}).model_dump(
    mode="json"
)
PLACES = list(places(WHOLE))


def forge(root, content):
    """A run of the baseline with a record more, in a file of the name that belongs to it, if any does."""
    shutil.rmtree(root, ignore_errors=True)
    (good,) = rounds("full_gpu", [BASELINE])
    beside = RecordStore(root).write(good)
    try:
        name = file_name(Record.model_validate(content))
    except ValueError:
        name = "forged.json"
    forged = beside.with_name(name)
    forged.write_text(json.dumps(content))
    return forged


@settings(max_examples=12)
@given(place=st.sampled_from(PLACES), value=st.sampled_from(STRANGE))
@example(place=("measurement", "quality", "points", 1, "auroc"), value="Infinity")
@example(place=("measurement", "quality", "points", 1, "auroc"), value=1e308)
@example(place=("measurement", "traffic", "steps"), value=0)
@example(place=("measurement", "timing", "alone_steps_per_s"), value=0)
@example(place=("turns", "steps"), value=0)
@example(place=("turns", "system_s", 0, 0), value=1e308)
@example(place=("turns", "system_s", 0, 0), value=5e-324)
@example(place=("cell", "batch_size"), value=0)
@example(place=("optimum", "bytes_moved"), value=10**400)
def test_strange_value_anywhere_is_shown_or_named(tmp_path_factory, place, value):
    before, after = (tmp_path_factory.getbasetemp() / f"forged-{name}" for name in ("before", "after"))
    forge(before, WHOLE)
    forged = forge(after, put(WHOLE, place, value))
    source = read([after])
    assert {*source.files.values(), *(problem.path for problem in source.problems)} >= {forged}
    console = Console(file=io.StringIO(), width=80)
    for sheet in sheets(source.groups):
        for write in (to_markdown, to_csv):
            write(sheet)
    render(console, source.groups)
    try:
        compared = compare(read_run("RUN_A", before), read_run("RUN_B", after))
    except BadOption:
        return
    show(compared, console, everything=True)
    assert len(check_files(find_files([after]))) == 2
