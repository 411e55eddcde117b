"""Command line: `python -m suite report`."""

from pathlib import Path
from typing import Annotated

import typer

from suite.records.command_line import BadOption, ShownConsole, errors_told
from suite.records.groups import mixes_virtual
from suite.report.publish import PAGE, Source, publish, read
from suite.simulate.options import check_output


def report_command(
    *,
    out: Annotated[Path, typer.Option(help="Results directory that gets tables, figures and the page")] = Path(
        "results/published"
    ),
    records: Annotated[
        list[Path] | None,
        typer.Option(help="A results directory to read; again for each further run or machine; default: --out"),
    ] = None,
) -> None:
    """Turn records into what gets published: tables, figures, and one page that opens offline.

    Tables go to `tables/` as Markdown, CSV and LaTeX, figures to `figures/` as SVG, the page to `index.html`. The same
    records always give the same files. Records of another machine, device, data or setting stand in tables of their
    own; files that are no records are named and the rest is reported. Replays below `simulate/`, in the directory or
    beside it, give the figure of misses.

    Examples: `python -m suite report --out results`; `python -m suite report --records gpu --records cpu --out both`.

    The exit code is 2 for a wrong option or where there is nothing to report, 1 if a file cannot be written.
    """
    console = ShownConsole(soft_wrap=True, markup=False, highlight=False)
    with errors_told(left="files that were already written are whole") as errors:
        source = _read(out, records or [out])
        for problem in source.problems:
            errors.print(f"warning: left out {problem}")
        check_output(out)
        files = publish(source, out)
    tables, machines = len(source.groups), len({group.key.machine for group in source.groups})
    console.print(
        f"{len(source.records)} records of {machines} machine{'s' if machines > 1 else ''} in {tables} "
        f"comparison{'s' if tables > 1 else ''}: wrote {len(files)} files"
    )
    console.print(f"Open {out / PAGE}")


def _read(out: Path, roots: list[Path]) -> Source:
    """Read what the options name.

    Raises:
        BadOption: a directory is missing, there is no record that can be read, or some are of a virtual device.
    """
    for root in roots:
        if not (root / "records").is_dir():
            flag = "--out" if roots == [out] else "--records"
            raise BadOption(
                f"{flag}: {root} has no records/: run python run_bench.py --out {root} first, or name a results "
                "directory that has"
            )
    simulated = next((folder for folder in (out / "simulate", out.parent / "simulate") if folder.is_dir()), None)
    source = read(roots, simulated)
    named = ", ".join(map(str, roots))
    if not source.groups:
        skipped = "".join(f"\n  {problem}" for problem in source.problems)
        raise BadOption(f"no records to report in {named}: run python run_bench.py first{skipped}")
    if mixes_virtual(source.records):
        raise BadOption(
            f"--records: {named}: some records are of a virtual device and others were measured, so no report sets "
            "them side by side; give directories of one kind"
        )
    return source
