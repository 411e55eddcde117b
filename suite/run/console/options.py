"""The options of a run that decide what is planned: each is declared here, once, with its help.

`takes_options` makes them the parameters of a command, and `suite.run.plan` makes cells of them.
"""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from suite.records.command_line import BadOption, OptimizerName, ScaleName
from suite.records.environment import visible_gpu
from systems import registry
from systems.registry import split_list

_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "batch_size": (lambda size: size >= 1, "at least 1"),
    "rounds": (lambda rounds: 1 <= rounds <= 1_000, "from 1 to 1,000"),
    "steps": (lambda steps: steps >= 4, "at least 4"),
    "lr": (lambda lr: 0 < lr < 3e38, "above 0 and below 3e38"),  # rows are float32
    "seed": (lambda seed: 0 <= seed < 2**63, "from 0 to 2**63 - 1"),  # what torch's generators take
    "frequency_prefix": (lambda share: 0 < share <= 1, "above 0 and at most 1"),
    # they split the batches of verification too; of a power of two parts, means add up exactly
    "ranks": (lambda ranks: ranks in (1, 2, 4, 8, 16, 32, 64), "a power of two, 64 at most"),
    "embedding_dim": (lambda dim: dim >= 4 and dim % 4 == 0, "a multiple of 4, from 4 on (fbgemm's kernels need that)"),
}


Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options as they are given; None stands for the scale's own value."""

    systems: Annotated[
        str,
        Option(
            help="all, distinct (all but those that on a CPU run another one's kernel), or names, with variants: "
            "freq_cache, fbgemm_uvm_caching[policy=lfu]"
        ),
    ] = "distinct"
    workloads: Annotated[
        str,
        Option(help="all (the published datasets, or what --data-dir holds), or names: avazu, criteo_kaggle@drift"),
    ] = "all"
    scale: Annotated[
        ScaleName | None,
        Option(help="Size of tables, model and steps; default: the largest that suits the device"),
    ] = None
    data_dir: Annotated[
        Path | None, Option(help="Train on datasets made by `python -m workloads prepare`; default: synthetic")
    ] = None
    device: Annotated[Device, Option(help="auto takes a CUDA device where torch sees one")] = "auto"
    optimizer: Annotated[
        OptimizerName, Option(metavar="<name>", help=f"Of rows and MLPs alike: {', '.join(OptimizerName)}")
    ] = OptimizerName.SGD
    lr: Annotated[float | None, Option(help="Learning rate; default: the scale's")] = None
    batch_size: Annotated[int | None, Option(help="Samples per step; default: the scale's")] = None
    embedding_dim: Annotated[int | None, Option(help="Width of every row; default: the scale's")] = None
    cache_ratio: Annotated[
        str | None, Option(help="Cached rows as a share of all rows, or a sweep: 0.005,0.015,0.05")
    ] = None
    device_budget: Annotated[
        str | None,
        Option(
            help="Equal bytes instead of equal ratio: 1.5GiB, or a sweep: 64MiB,256MiB. With --tier disk one size: the "
            "part of --host-budget that plays a device, below a level of RAM"
        ),
    ] = None
    tier: Annotated[
        Literal["memory", "disk"],
        Option(help="disk: the contest of rows on a drive, which a CPU trains, at a --host-budget"),
    ] = "memory"
    host_budget: Annotated[
        str | None,
        Option(help="With --tier disk: memory for rows in all, page cache included, or a sweep: 512MiB,1GiB"),
    ] = None
    frequency_prefix: Annotated[
        float, Option(help="Share of the training split, from its beginning, that row frequencies are counted on")
    ] = 0.1
    tf32: Annotated[
        bool, Option("--tf32", help="Multiply dense layers in TF32 instead of fp32, on an NVIDIA device")
    ] = False
    ranks: Annotated[int | None, Option(help="Processes that share every system's tables, and each batch")] = None
    steps: Annotated[int | None, Option(help="Training steps per cell; default: the scale's")] = None
    rounds: Annotated[int, Option(help="Repetitions of everything, each with a seed of its own")] = 1
    seed: Annotated[int, Option(help="Of streams, rows and dense weights in the first round")] = 0

    @property
    def on_drive(self) -> bool:
        """Whether rows are on a drive."""
        return self.tier == "disk"


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of `Options` as parameters, ahead of its own; it is called with `options`."""
    fields = inspect.signature(Options).parameters
    own = {name: one for name, one in inspect.signature(command).parameters.items() if name != "options"}

    @functools.wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 - of several types
        options = Options(**{name: given.pop(name) for name in fields})
        command(options=options, **given)

    called.__signature__ = inspect.Signature([*fields.values(), *own.values()])  # type: ignore[attr-defined]
    return called


def check_options(options: Options, *, device: str) -> None:
    """Refuse options that can never run on a device, `cpu` or `cuda`.

    Raises:
        BadOption: the first option that is out of range.
    """
    for name, (fine, expected) in _RANGES.items():
        value = getattr(options, name)
        if value is not None and not fine(value):
            raise BadOption(f"--{name.replace('_', '-')}: {value} is out of range, it must be {expected}")
    if "disk" in split_list(options.systems) and not options.on_drive:
        raise BadOption("--systems disk are the rivals in keeping rows on a drive: give --tier disk")
    if options.host_budget and not options.on_drive:
        raise BadOption("--host-budget is for rows on a drive: give --tier disk")
    if options.on_drive and options.cache_ratio:
        raise BadOption("--tier disk has a --host-budget, and no --cache-ratio")
    if options.on_drive and device == "cuda":
        raise BadOption("--tier disk computes on a CPU: give --device cpu")
    if options.tf32 and device != "cuda":
        raise BadOption("--tf32 is of NVIDIA devices, and a CPU computes here: leave it out, or give --device cuda")
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1"):
        raise BadOption(f"WORLD_SIZE is {started}: give --ranks {started} to one process, which starts the ranks")
    if options.ranks and (options.on_drive or options.device_budget):
        raise BadOption("--ranks takes a --cache-ratio, and neither --tier disk nor --device-budget")
    if options.ranks and device == "cuda":
        import torch  # only now, as in `choose_device`

        if 0 < torch.cuda.device_count() < options.ranks:
            found = torch.cuda.device_count()
            raise BadOption(f"--ranks {options.ranks} takes a GPU each, {found} visible: give fewer, or --device cpu")
    if options.cache_ratio and options.device_budget:
        raise BadOption("--cache-ratio and --device-budget exclude each other: a budget sets every system's cache size")


def named_systems(options: Options, *, cuda: bool) -> list[registry.Variant]:
    """Parse `--systems`; variants with user-given parameters or a user's module are imported to check them.

    `all` and `distinct` depend on the device, on `--tier` and on `--ranks`.

    Raises:
        UnknownSystem: a name, a parameter or a value is not known; a `ValueError`.
        BadOption: a user's module cannot be imported.
    """
    on_ranks = options.ranks is not None
    every = registry.ALL_ON_CUDA if cuda else registry.ALL
    if options.on_drive or on_ranks:
        every = registry.ALL_ON_RANKS if on_ranks else registry.GROUPS["disk"]
    if options.on_drive and options.device_budget:
        every = (*every, registry.TWO_LEVELS)
    variants = registry.parse_systems(options.systems, every=every)
    ours = {registry.TWO_LEVELS}.union(registry.ALL_ON_CUDA, *registry.GROUPS.values())
    if on_ranks:
        ours = set(registry.ALL_ON_RANKS)
    for variant in variants:
        if (str(variant) not in ours and (variant.parameters or on_ranks)) or ":" in variant.name:
            try:
                registry.load(variant, on_ranks=on_ranks)
            except registry.UnknownSystem:
                raise
            except Exception as error:  # the import of a user's module can raise anything
                if ":" in variant.name:
                    raise BadOption(f"--systems: cannot import {variant}: {type(error).__name__}: {error}") from error
                # one of our systems lacks a package: its cell will report which
    return variants


def choose_device(device: Device) -> tuple[str, str]:
    """Choose the device, `cpu` or `cuda`. Returns it, and a sentence with the reason.

    Raises:
        BadOption: CUDA was asked for and cannot be used.
    """
    if device == "cpu":
        return "cpu", "device: cpu, as asked"
    why = "no NVIDIA device is visible"
    if (gpu := visible_gpu()) is not None:
        import torch  # only now: the parent process of a CPU run does not need it

        if torch.cuda.is_available():
            return "cuda", f"device: cuda ({gpu.model})"
        why = f"torch {torch.__version__} cannot use the {gpu.model}; run make setup again, which picks the CUDA builds"
    if device == "cuda":
        raise BadOption(f"--device cuda: {why}, or use --device cpu")
    return "cpu", f"device: cpu, because {why}"
