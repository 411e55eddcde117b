"""Which rows train, validate and test."""

from collections.abc import Sequence

from workloads.errors import DataError
from workloads.prepare.formats import Fractions
from workloads.schema import CRITEO_1TB, CRITEO_KAGGLE
from workloads.split import Split


def split_rows(
    dataset: str, file_rows: Sequence[int], *, fractions: Fractions | None = None
) -> tuple[dict[Split, int], str]:
    """Rows of the splits in time order, and the rule in words.

    Criteo Kaggle and Avazu as in CachedEmbedding (`recsys/datasets` @a2af3d7e), Criteo 1TB as in torchrec's DLRM.

    `file_rows` are of the raw files in time order; `fractions` of a dataset that has no published split.

    Raises:
        DataError: a split would be empty.
    """
    rows = sum(file_rows)
    after = "; first half of the rest, rounded up, validation, second half test"
    if fractions is not None:
        # the sum first: 0.7 + 0.3 of ten rows must not lose one to rounding
        train, seen = round(rows * fractions.train), round(rows * (fractions.train + fractions.validation))
        rule = f"the first {fractions.train:g} of the rows train, the next {fractions.validation:g} validate"
        after = ", the rest test"
    else:
        if dataset == CRITEO_KAGGLE.name:
            rest, rule = rows - 6 * (rows // 7), "six of seven equal chunks train"
        elif dataset == CRITEO_1TB.name and len(file_rows) > 1:
            rest, rule = file_rows[-1], "the last file plays day 23, the others train"
        elif dataset == CRITEO_1TB.name:
            rule = "a single file: its last 1/24 rows (at least 2) play day 23, the others train"
            rest = max(2, rows // 24)
        else:
            rest, rule = rows // 10, "all but the last tenth train"
        train, seen = rows - rest, rows - rest // 2
    splits = {Split.TRAIN: train, Split.VALIDATION: seen - train, Split.TEST: rows - seen}
    empty = [str(split) for split, count in splits.items() if count < 1]
    if empty:
        where = f", {file_rows[-1]} of them in the last file" if len(file_rows) > 1 else ""
        raise DataError(f"{rows} rows{where} leave no row for {' and '.join(empty)} ({rule}): give more rows")
    return splits, f"in time order; {rule}{after}"
