"""How many steps a cell trains and a system takes in turns, and how they shrink to fit a small dataset."""

from __future__ import annotations

from dataclasses import replace

from suite.records.options import BadOption
from suite.records.scales import Scale

_LEAST_STEPS = 16
"""Of a run on a small real dataset, before the batch is halved any further."""
_LEAST_BATCH = 16


def with_steps(scale: Scale, steps: int) -> Scale:
    """The scale with `steps` training steps in all, an eighth of them counted."""
    counted = max(1, steps // 8)
    return replace(scale, train_steps=steps - counted, counted_steps=counted)


def fitted_to_epoch(scale: Scale, training_rows: int) -> tuple[Scale, list[str]]:
    """Shrink steps, then the batch, until no row is trained on twice: a repeated batch flatters every cache.

    Raises:
        BadOption: not even the smallest batch leaves four steps.
    """
    wanted = scale.train_steps + scale.counted_steps
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
    return _with_fewer_turns(scale, steps, changes), changes


def _with_fewer_turns(scale: Scale, steps: int, changes: list[str]) -> Scale:
    """The scale with at most so many steps of a system after a build."""
    if scale.warmup_steps + scale.turns * scale.turn_steps <= steps:
        return scale
    warmup = min(scale.warmup_steps, max(1, steps // 8))
    turn_steps = min(scale.turn_steps, max(1, (steps - warmup) // 2))
    turns = (steps - warmup) // turn_steps
    changes.append(
        f"{warmup} steps and {turns} turns of {turn_steps} steps after each build, one whole epoch, instead of "
        f"{scale.warmup_steps} and {scale.turns} of {scale.turn_steps}"
    )
    return replace(scale, warmup_steps=warmup, turns=turns, turn_steps=turn_steps)
