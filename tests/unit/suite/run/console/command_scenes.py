"""Calling the command line, and data small enough for it."""

import random

from typer.testing import CliRunner

from suite.run.console import command as cli
from workloads.prepare.prepare import prepare

TINY = ["--scale", "smoke", "--device", "cpu", "--steps", "5", "--batch-size", "32", "--embedding-dim", "4"]


def call(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def prepared_kaggle(base, *, rows):
    """A directory with one tiny prepared dataset, six of seven rows to train on."""
    draw = random.Random(0)
    raw = [
        [draw.randrange(2), *(draw.randrange(9) for _ in range(13)), *(f"{draw.randrange(40):x}" for _ in range(26))]
        for _ in range(rows)
    ]
    (base / "train.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in raw))
    prepare("criteo_kaggle", [base / "train.txt"], out=base / "prepared")
    return base / "prepared"
