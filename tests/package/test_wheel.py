"""The wheel by itself: what it holds, and that the cache in it needs five packages and no more."""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import run_bench

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("suite", "systems", "workloads")

TRAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import fbgemm_gpu, numba, numpy, torch, torchrec

def top_level():
    return {name.partition(".")[0] for name in sys.modules}

allowed = top_level() | set(sys.stdlib_module_names) | {"systems"}

from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from systems.contract import OptimizerKind, SparseOptimizer
from systems.freq_cache import CachedEmbeddingBagCollection

tables = [EmbeddingBagConfig(name="table", num_embeddings=1000, embedding_dim=8, feature_names=["ids"])]
cached = CachedEmbeddingBagCollection(
    tables,
    optimizer=SparseOptimizer(kind=OptimizerKind.SGD, lr=0.1),
    cache_ratio=0.1,
    look_ahead=2,
    directory="rows",
)
schedule = torch.optim.lr_scheduler.ExponentialLR(cached.fused_optimizer, gamma=0.9)
batches = [KeyedJaggedTensor(["ids"], torch.randint(1000, (40,)), lengths=torch.full((20,), 2)) for _ in range(3)]
before = cached.read_rows("table", torch.arange(1000)).weights
for batch in cached.announced(batches):
    cached(batch).values().sum().backward()
    schedule.step()
changed = (cached.read_rows("table", torch.arange(1000)).weights != before).any(dim=1)
assert changed.nonzero().squeeze(1).tolist() == torch.cat([b.values() for b in batches]).unique().tolist()
cached.save("saved")
cached.load("saved")
cached.close()
print("from", sys.modules["systems"].__file__)
print("beyond", *sorted(top_level() - allowed))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} said:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files beside the sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", built)
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=source)
    (made,) = built.iterdir()
    return made


def test_wheel_carries_license_types_and_every_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    sources = (
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    assert [path for path in sources if path not in names] == []


def test_cache_trains_beside_five_packages_and_imports_no_other(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)  # that is how a wheel of Python files is installed
    said = run(sys.executable, "-I", "-W", "ignore", "-c", TRAIN, site, cwd=tmp_path).splitlines()
    assert said[-2].startswith(f"from {site}")
    assert said[-1] == "beyond", f"imported beyond the five: {said[-1]}"


def test_console_script_is_the_command_of_a_run(wheel: Path) -> None:
    (at,) = {name.partition("/")[0] + "/" for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" in name}
    declared = metadata.PathDistribution(zipfile.Path(wheel, at))
    (script,) = declared.entry_points.select(group="console_scripts", name="embedding-offload-bench")
    assert script.load() is run_bench.main
