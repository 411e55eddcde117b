"""The comparison as Markdown and CSV. Pure functions of records: the same records always give the same files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from suite.records.groups import Group
from suite.records.store import write_atomically
from suite.tables.frames import frame
from suite.tables.sections import COLUMNS, LEGEND, PUBLISHED_HEADERS, section


def to_markdown(group: Group) -> str:
    """One comparison group as a Markdown section: facts, table, failures, notes, ranking, published rows."""
    content = section(group)
    facts = [f"- {label}: {text}" for label, text in content.facts]
    if content.caveat:
        facts.append(f"- On a CPU: {content.caveat}")
    blocks = [
        f"## {content.heading}",
        "\n".join(facts),
        table(
            [column.header for column in COLUMNS],
            content.rows,
            text=[index for index, column in enumerate(COLUMNS) if column.text],
        ),
    ]
    if content.failures:
        blocks.append(_remarks("Not measured:", content.failures))
    if content.notes:
        blocks.append(_remarks("Notes:", content.notes))
    if content.hits:
        blocks.append(_remarks("Found on the device, counted before anything was fetched:", content.hits))
    if content.ranking:
        # Not a Markdown list: that would number tied systems one after another.
        blocks.append("\n".join([f"{content.ranking_title}:", "", "```text", *content.ranking, "```"]))
    if content.published:
        last = len(PUBLISHED_HEADERS) - 1
        blocks += [
            "Published rows, measured by others on other hardware:",
            table(PUBLISHED_HEADERS, content.published, text=[0, last - 1, last]),
            content.published_note,
        ]
    return "\n\n".join(blocks) + "\n"


def to_csv(groups: Iterable[Group]) -> str:
    """All groups as one CSV: raw numbers in SI units, empty where there is no value, published rows last."""
    text: str = frame(*groups, published=True).to_csv(index=False, float_format="%.12g", lineterminator="\n")
    return text


def write_tables(groups: Sequence[Group], directory: Path) -> tuple[Path, Path]:
    """Write `comparison.md` and `comparison.csv`.

    Args:
        groups: From `suite.records.groups.group_records`.
        directory: Created if it is missing.

    Returns:
        The two paths.

    Raises:
        StoreError: a file cannot be written; the earlier file is still whole.
    """
    sections = [to_markdown(group) for group in groups] or ["No records yet: run the benchmark first.\n"]
    markdown, table = directory / "comparison.md", directory / "comparison.csv"
    write_atomically(markdown, "\n".join(["# Comparison of embedding offload systems\n", f"{LEGEND}\n", *sections]))
    write_atomically(table, to_csv(groups))
    return markdown, table


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, text: Sequence[int]) -> str:
    """A Markdown table; columns numbered in `text` are flush left."""
    rules = ["---" if index in text else "---:" for index in range(len(headers))]
    return "\n".join("| " + " | ".join(map(escaped, cells)) + " |" for cells in (headers, rules, *rows))


def _remarks(title: str, remarks: Iterable[tuple[str, str]]) -> str:
    return "\n".join([title, "", *(f"- `{system}`: {escaped(remark)}" for system, remark in remarks)])


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    # `_` and `*` inside names would otherwise open emphasis, `|` a cell, `<` a tag.
    for character in "\\|*<`":
        text = text.replace(character, f"\\{character}")
    return text
