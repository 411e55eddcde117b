"""Command line: `python -m suite` and one of the commands below."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "simulate": (
        "suite.simulate.command",
        "Replay ids through caches: what each policy misses, and the least possible.",
    ),
    "curves": ("suite.simulate.curves_command", "Misses of an LRU cache at every size; slots divided among tables."),
    "advise": ("suite.advise.command", "Memory that systems need; the least time of a step on described hardware."),
    "report": ("suite.report.publish", "Turn records into tables, figures and a page that opens offline."),
    "compare": ("suite.compare.command", "Two runs cell by cell: what changed beyond noise; a gate for CI."),
    "doctor": ("suite.doctor", "What on this machine would spoil a benchmark, each with a remedy."),
    "validate": ("suite.validate", "Check records: whether each loads by the rules of its models."),
}
"""Module of each command, which has the function `<name>_command`, and one line of help."""


class _Commands(TyperGroup):
    """Imports a command when it is called, not when it is listed: torch and the compiled loops take seconds."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | None:  # type: ignore[override]
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[str | None, Any, list[str]]:  # type: ignore[override]
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _imported(name), rest


def _imported(name: str) -> TyperCommand:
    module = importlib.import_module(COMMANDS[name][0])
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    alone.command(name)(getattr(module, f"{name}_command"))
    return typer.main.get_command(alone)  # type: ignore[return-value]


app = typer.Typer(cls=_Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def suite() -> None:
    """Beside the comparison, which is `run_bench.py`: replay caches, see what fits, publish and compare results."""


if __name__ == "__main__":
    app()
