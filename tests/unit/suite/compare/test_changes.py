import pytest
from compare_scenes import STEADY, compared, later

from suite.records.record import Record, Status
from tests.unit.suite.fabricate import environment, record, rounds, verification


def measured(records: list[Record], part: str, **changes: object) -> list[Record]:
    """The same records with other figures in a part of their measurement."""
    found = []
    for one in records:
        inner = getattr(one.measurement, part)
        if inner is not None:  # traffic is counted in the first round alone
            inner = inner.model_copy(update=changes)
        found.append(one.model_copy(update={"measurement": one.measurement.model_copy(update={part: inner})}))
    return found


def changes_of(tmp_path, after, before=None):
    found = compared(tmp_path, rounds("cache", STEADY) if before is None else before, after)
    return dict(zip(found.changes["quantity"], found.changes["text"], strict=True))


def test_equal_runs_have_no_change(tmp_path):
    found = compared(tmp_path, rounds("cache", STEADY), later("cache", STEADY))
    assert found.changes.empty
    assert found.differences == ()


MB = 10**6


@pytest.mark.parametrize(
    ("field", "within", "beyond", "quantity", "text"),
    [
        ("quality.auroc", 0.79119, 0.78900, "AUROC", "0.79110 -> 0.78900 (-0.0021)"),
        (
            "memory.device_allocated_bytes",
            1262 * MB,
            1375 * MB,
            "peak allocated on the device",
            "1,250 MB -> 1,375 MB (+10.00 %)",
        ),
        ("traffic.unique_misses", 50_900, 60_000, "hit rate", "95.00 % -> 94.00 % (-1.00 points)"),
        ("traffic.bytes_fetched", 26_050_000, 28_380_000, "fetched per step", "2.58 MB -> 2.84 MB (+10.00 %)"),
        ("traffic.bytes_written_back", 20_500_000, 0, "written back per step", "2.06 MB -> 0 MB (-100.0 %)"),
    ],
)
def test_change_is_listed_from_its_tolerance_on(tmp_path, field, within, beyond, quantity, text):
    after = later("cache", STEADY)
    part, _, name = field.partition(".")
    assert changes_of(tmp_path / "within", measured(after, part, **{name: within})) == {}
    assert changes_of(tmp_path / "beyond", measured(after, part, **{name: beyond})) == {quantity: text}


def test_device_bytes_are_compared_by_purpose(tmp_path):
    anatomy = {"device/rows": 172_000_000, "device/state": 1_350_000, "device/index": 4_000_000, "host/rows": 1}
    found = changes_of(tmp_path, measured(later("cache", STEADY), "memory", anatomy_bytes=anatomy))
    assert found == {"index on the device": "0 MB -> 4.00 MB"}


def test_status_change_tells_phase_and_reason(tmp_path):
    crashed = record("cache", round=2, status=Status.CRASHED, reason="SIGSEGV,\nsee the log", phase="warm up")
    found = changes_of(tmp_path, [*later("cache", STEADY[:2]), crashed])
    assert found["status"] == "ok -> crashed in phase warm up: SIGSEGV, see the log"


def test_lost_verification_is_said(tmp_path):
    wrong = verification(passed=False, difference=0.3)
    before = [*rounds("a", STEADY, checked=verification(difference=3e-7, tolerance=1e-6)), *rounds("b", STEADY)]
    after = [*later("a", STEADY), *later("b", STEADY, checked=wrong, status=Status.WRONG_ANSWER)]
    found = compared(tmp_path, before, after).changes
    assert found.loc[found["quantity"] == "verified", ["label", "text"]].to_numpy().tolist() == [
        ["a x criteo_kaggle", "within 3e-07 -> bitwise"],
        ["b x criteo_kaggle", "bitwise -> no, verification lost"],
    ]


def test_everything_that_differs_between_environments_is_called_out(tmp_path):
    changes = {
        "cpu": "Intel Xeon 6980P", "memory_bytes": 256 * 10**9, "driver": "580.1", "packages": {"torch": "2.14.0"},
        "threads": 32, "code": "beef", "dirty": True, "system_code": "new",
    }  # fmt: skip
    where = environment(system_code="old"), environment(**changes)
    after = later("mine:Cache", STEADY, where=where[1])
    after[1] = after[1].model_copy(update={"disturbed": ("other processes took 40% of the CPUs",)})
    found = compared(tmp_path, rounds("mine:Cache", STEADY, where=where[0]), after)
    assert [f"{name}: {before} -> {after}" for name, before, after in found.differences] == [
        "cpu: AMD EPYC 7543 32-Core Processor -> Intel Xeon 6980P",
        "memory: 128.0 GB -> 256.0 GB",
        "driver: 570.10 -> 580.1",
        "code: c0de -> beef",
        "code of mine:Cache: old -> new",
        "dirty: False -> True",
        "threads: 16 -> 32",
        "torch: 2.13.0 -> 2.14.0",
        "torchrec: 1.8.0 -> none",
    ]
    said = "has 1 record of a disturbed machine, e.g. mine:Cache x criteo_kaggle #2: other processes took 40%"
    assert any(said in warning for warning in found.warnings)
