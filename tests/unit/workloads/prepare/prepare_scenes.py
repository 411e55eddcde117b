"""What the tests of preparation share: made-up rows of Criteo Kaggle, and what came of them."""

import random

import numpy as np


def kaggle_row(*, label=0, integers=(0,) * 13, ids=("aa",) * 26):
    return "\t".join([str(label), *map(str, integers), *ids]) + "\n"


def kaggle_file(path, rows):
    path.write_text("".join(rows))
    return path


def random_rows(count, seed=0):
    draw = random.Random(seed)
    return [
        kaggle_row(
            label=draw.randrange(2),
            integers=[draw.choice(["", draw.randrange(-3, 90)]) for _ in range(13)],
            ids=[draw.choice(["", "a", "b", "c", f"{draw.randrange(60):x}"]) for _ in range(26)],
        )
        for _ in range(count)
    ]


def load(folder):
    return {path.name: np.load(path) for path in folder.glob("*.npy")}


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
