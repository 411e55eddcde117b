"""What the tests of the figures share: sources, and what an axes shows."""

from __future__ import annotations

from matplotlib.container import ErrorbarContainer

from suite.simulate.results import Configuration, SimulatedRow, SimulatedTraffic, Simulation, Stream
from tests.unit.suite import fabricate

GB = fabricate.GB


CPU = {"device": "cpu", "max_rows": 1_000_000, "cache_ratio": None}


def simulation(name="criteo_kaggle", policies=("freq_cache[policy=lru]", "belady", "compulsory"), complete=True):
    rows = 1000
    ratios = (0.01, 0.1, 0.5)
    made = []
    for number, policy in enumerate(policies):
        for ratio in ratios:
            missed = round(1000 * (1 - ratio) / (1 + number))
            traffic = SimulatedTraffic(
                batches=10, lookups=4000, unique_ids=1000, unique_misses=missed, lookup_misses=missed,
                rows_fetched=missed,
                rows_written_back=0, bytes_fetched=4 * missed, bytes_written_back=0, overflow_batches=0, details={},
            )  # fmt: skip
            made.append(
                SimulatedRow(
                    policy=policy,
                    cache_ratio=ratio,
                    slots_asked=int(ratio * rows),
                    slots=1,
                    status="ok",
                    traffic=traffic,
                )
            )
    made.append(
        SimulatedRow(policy=policies[0], cache_ratio=1, slots_asked=rows, slots=0, status="cannot_replay", reason="x")
    )
    return Simulation(
        stream=Stream(
            name=name, workload=name, scale="smoke", batch_size=64, seed=3, frequency_prefix=1, tables={"C1": rows},
            rows=rows, batches=50,
        ),
        configuration=Configuration(
            policies=tuple(policies), cache_ratios=ratios, warmup_batches=5, counted_batches=10, optimizer="sgd",
            embedding_dim=16,
        ),
        environment=fabricate.environment(gpu=False),
        complete=complete,
        rows=tuple(made),
    )  # fmt: skip


def axes_of(figure, title):
    return next(axes for axes in figure.axes if axes.get_title().startswith(title) and axes.get_visible())


def line(axes, label):
    return next(one for one in axes.lines if one.get_label() == label)


def sweep(workload="criteo_kaggle", *, noise=0.02, device="cuda"):
    """A cache at two sizes that costs 20 and 10 %, a table on the host, and the baseline with an A/A ratio of 1.04."""
    records = []
    for ratio, speed in ((0.01, 0.8), (0.05, 0.9)):
        setting = {"workload": workload, "cache_ratio": ratio, "device": device}
        for name, share, anatomy in (
            ("full_gpu", 1.04, {"device/rows": 100 * GB // 10}),
            ("cache", speed, {"device/rows": int(ratio * GB), "device/index": GB // 1000}),
            ("torchrec_uvm", 0.5, {"host/rows": GB}),
            ("no_embeddings", 2, {}),
        ):
            speeds = [share * fabricate.BASELINE] * 3
            records += fabricate.rounds(name, speeds, setting=setting, noise=noise, anatomy=anatomy)
    return records


def drawn_points(axes):
    """Place, ratio and interval of every point, by label."""
    found = {}
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        bars = container.lines[2][0].get_segments()
        found[container.get_label()] = [
            (x, y, low, high) for x, y, ((_, low), (_, high)) in zip(*container.lines[0].get_data(), bars, strict=True)
        ]
    return found
