"""How many steps a cell trains, and how they are shared out among its phases."""

from __future__ import annotations

from dataclasses import replace

from suite.records.options import BadOption
from suite.records.scales import Scale

_LEAST_STEPS = 16
"""Of a run on a small real dataset, before the batch is halved any further."""
_LEAST_BATCH = 16


def with_steps(scale: Scale, steps: int) -> Scale:
    """The scale with `steps` training steps in all, an eighth each for warm-up and counting."""
    edge = max(1, steps // 8)
    timed = steps - 2 * edge
    most = min(scale.windows, timed)
    # of the upper half, the number of windows that wastes the fewest steps, then the larger
    windows = min(range(-(-most // 2), most + 1), key=lambda n: (timed % n, -n))
    per_window = timed // windows
    return replace(
        scale,
        warmup_steps=steps - edge - windows * per_window,
        windows=windows,
        window_steps=per_window,
        counted_steps=edge,
    )


def fitted_to_epoch(scale: Scale, training_rows: int) -> tuple[Scale, list[str]]:
    """Shrink steps, then the batch, until no row is trained on twice: a repeated batch flatters every cache.

    Raises:
        BadOption: not even the smallest batch leaves four steps.
    """
    wanted = scale.warmup_steps + scale.windows * scale.window_steps + scale.counted_steps
    batch = scale.batch_size
    while training_rows // batch < min(wanted, _LEAST_STEPS) and batch > _LEAST_BATCH:
        batch = max(_LEAST_BATCH, batch // 2)
    steps = training_rows // batch
    if steps < 4:
        raise BadOption(f"--data-dir: {training_rows} training rows are too few for four batches of {batch}")
    changes = []
    if batch != scale.batch_size:
        changes.append(
            f"batch {batch} instead of {scale.batch_size}, because there are {training_rows:,} training rows"
        )
    scale = replace(scale, batch_size=batch)
    if steps < wanted:
        changes.append(f"{steps} steps, one whole epoch, instead of {wanted}")
        scale = with_steps(scale, steps)
    return scale, changes
