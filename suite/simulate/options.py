"""The stream that a command line names."""

from __future__ import annotations

from pathlib import Path

from suite.plan import BadOption, parse_prepared, parse_workloads
from suite.scales import SCALES
from suite.simulate.trace import Trace, WorkloadTrace
from workloads.prepared import PreparedWorkload, find_prepared
from workloads.synthetic import SyntheticWorkload


def open_trace(
    *,
    workload: str,
    scale: str,
    data_dir: Path | None = None,
    trace: Path | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    frequency_prefix: float = 1.0,
) -> Trace:
    """The training stream of a workload, synthetic or prepared, or a trace file.

    Args:
        workload: One name, as `run_bench.py --workloads` takes it; with `trace` it is ignored.
        scale: Gives table sizes of synthetic streams, and the batch size unless that is given.
        data_dir: Where datasets were prepared.
        trace: A file of ids; see `suite.simulate.trace_file`.
        batch_size: Samples per batch.
        seed: Of synthetic streams, and of the order of prepared ones.
        frequency_prefix: Share of the training split that a system may take frequencies from.

    Raises:
        BadOption: an option cannot be.
        DataError: prepared data or a trace file are damaged.
    """
    samples = SCALES[scale].batch_size if batch_size is None else batch_size
    if samples < 1:
        raise BadOption(f"--batch-size: {samples} is out of range, it must be at least 1")
    if not 0 < frequency_prefix <= 1:
        raise BadOption(f"--frequency-prefix: {frequency_prefix} is out of range, it must be above 0 and at most 1")
    if trace is not None:
        from suite.simulate.trace_file import FileTrace

        return FileTrace.open(trace, batch_size=samples, prefix=frequency_prefix)
    if data_dir is not None:
        prepared = find_prepared(data_dir)
        name = _only_one(parse_prepared(workload, prepared, data_dir=data_dir))
        opened = PreparedWorkload.open(prepared[name], batch_size=samples, seed=seed)
        return WorkloadTrace(opened, prefix=frequency_prefix)
    name = _only_one(parse_workloads(workload))
    made = SyntheticWorkload.create(name, batch_size=samples, seed=seed, max_rows=SCALES[scale].max_rows)
    return WorkloadTrace(made, prefix=frequency_prefix)


def _only_one(names: tuple[str, ...]) -> str:
    if len(names) > 1:
        raise BadOption(f"--workload: give one of {', '.join(names)}")
    return names[0]
