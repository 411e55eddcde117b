"""What a record says of machine, packages and code, and which changes of code make a measured cell undone."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from suite.records import environment
from suite.records.environment import Gpu, capture, code_digest, git_state, system_digest


class FakeNvmlError(Exception):
    pass


def fake_nvml(*, working: bool = True) -> types.ModuleType:
    """NVML with two GPUs, `small` at index 0 and `big` at index 1, or one that cannot start."""
    module = types.ModuleType("pynvml")
    memory = {"small": 16 * 2**30, "big": 80 * 2**30}

    def init() -> None:
        if not working:
            raise FakeNvmlError("driver not loaded")

    module.NVMLError = FakeNvmlError
    module.nvmlInit = init
    module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetHandleByIndex = lambda index: ("small", "big")[index]
    module.nvmlDeviceGetHandleByUUID = {"GPU-1": "big"}.__getitem__
    module.nvmlDeviceGetName = lambda handle: f"NVIDIA {handle}"
    module.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=memory[handle])
    module.nvmlSystemGetDriverVersion = lambda: "570.10"
    module.nvmlSystemGetCudaDriverVersion = lambda: 12080
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for package in ("suite", "systems", "workloads"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f'"""{package}"""\n')
    return tmp_path


@pytest.fixture
def repository(project: Path) -> Path:
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    return project


def git(where: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=where, check=True, capture_output=True)


def test_capture_describes_this_machine_without_importing_torch() -> None:
    script = (
        "import sys; from suite.records.environment import capture; e = capture(threads=3);"
        "assert 'torch' not in sys.modules, 'torch was imported';"
        "assert e.threads == 3 and e.cores >= 1 and e.memory_bytes > 2**28 and e.cpu and e.machine;"
        "assert {'torch', 'numpy', 'numba', 'polars'} <= set(e.packages)"
    )
    root = Path(environment.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("visible", "model", "name"),
    [
        ("1,0", "NVIDIA big", "cuda-GPU-big"),
        ("GPU-1", "NVIDIA big", "cuda-GPU-big"),
        ("0", "NVIDIA small", "cuda-GPU-small"),
        ("", None, "cuda"),
        ("-1", None, "cuda"),
    ],
)
def test_gpu_is_the_one_that_cuda_shows_and_has_one_name_however_it_was_chosen(
    monkeypatch: pytest.MonkeyPatch, visible: str, model: str | None, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = environment.visible_gpu()
    assert (gpu.model if gpu else None) == model
    assert environment.device_name("cuda") == name
    assert environment.device_name("cpu") == "cpu"


@pytest.mark.parametrize("nvml", [None, fake_nvml(working=False)])
def test_no_gpu_is_none_and_no_failure(monkeypatch: pytest.MonkeyPatch, nvml: types.ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment.visible_gpu() is None


def test_machine_digest_ignores_a_few_megabytes_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "git_state", lambda _: (None, None))

    def digest(cpu: str = "a", cores: int = 8, memory_bytes: int = 64 * 2**30, gpu: str | None = "H100") -> str:
        monkeypatch.setattr(environment, "cpu_model", lambda: cpu)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
        monkeypatch.setattr(environment, "usable_memory_bytes", lambda: memory_bytes)
        monkeypatch.setattr(environment, "visible_gpu", lambda: gpu and Gpu(model=gpu))
        return capture().machine

    assert digest(memory_bytes=64 * 2**30 - 9_000_000) == digest()
    changed = [digest(cpu="b"), digest(cores=9), digest(memory_bytes=32 * 2**30), digest(gpu=None)]
    assert len({digest(), *changed}) == 5


def test_container_limit_below_the_machines_memory_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(environment, "_CGROUP_LIMITS", (limit,))
    limit.write_text("max\n")
    total = environment.usable_memory_bytes()
    limit.write_text("1048576\n")
    assert environment.usable_memory_bytes() == 1048576 < total


def test_commit_is_none_outside_git_and_without_it_and_inside_another_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository / "venv" / "site-packages"
    inner.mkdir(parents=True)
    assert git_state(inner) == git_state(repository.parent) == (None, None)
    monkeypatch.setenv("PATH", "")
    assert git_state(repository) == (None, None)


def test_tree_is_dirty_where_a_source_has_changed_or_is_new(repository: Path) -> None:
    (repository / "results.md").write_text("published")
    commit, dirty = git_state(repository)
    assert commit is not None
    assert len(commit) == 40
    assert dirty is False
    for file in ("systems/untracked.py", "suite/__init__.py"):
        kept = (repository / file).read_text() if (repository / file).exists() else None
        (repository / file).write_text("x = 1\n")
        assert git_state(repository)[1] is True
        (repository / file).unlink() if kept is None else (repository / file).write_text(kept)


# Code


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_code_digest_changes_with_any_source_file_its_name_and_its_content(project: Path) -> None:
    digests = [code_digest(project)]
    for file, text in (("suite/__init__.py", "x = 1\n"), ("suite/__init__.py", "x = 2\n"), ("systems/a.py", "")):
        write(project / file, text)
        digests.append(code_digest(project))
    write(project / "workloads/streams/profiles.json", "{}")
    digests.append(code_digest(project))
    (project / "systems" / "a.py").rename(project / "systems" / "b.py")
    digests.append(code_digest(project))
    assert len(set(digests)) == len(digests)
    write(project / "suite" / "__pycache__" / "x.pyc", "1")
    write(project / "README.md", "text")
    assert code_digest(project) == digests[-1]


@pytest.mark.parametrize(
    ("file", "undone"),
    [
        ("suite/tables/new.py", False),
        ("suite/advise/hardware/new.json", False),
        ("suite/run/tables.py", True),
        ("systems/report/new.py", True),
    ],
)
def test_presenting_code_is_told_by_its_folder_and_never_by_its_name(project: Path, file: str, undone: bool) -> None:
    before = code_digest(project)
    write(project / file, "1")
    assert (code_digest(project) != before) is undone


# Systems of one's own


def test_digest_of_a_system_of_ones_own_changes_with_its_module_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = write(tmp_path / "digested_alone.py", "x = 1\n")
    before = system_digest("digested_alone:Mine[policy=lfu]")
    write(tmp_path / "digested_stranger.py", "")
    assert system_digest("digested_alone:Other") == before
    file.write_text("x = 2\n")
    assert system_digest("digested_alone:Mine") not in (before, None)


def test_digest_of_a_system_in_a_package_covers_the_whole_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("__init__", "cache", "policies/lfu"):
        write(tmp_path / "digested_package" / f"{name}.py", "")
    before = system_digest("digested_package:Mine")
    write(tmp_path / "digested_package" / "notes.txt", "1")
    assert system_digest("digested_package.cache:Mine") == before
    write(tmp_path / "digested_package" / "policies" / "lfu.py", "x = 1\n")
    assert system_digest("digested_package:Mine") not in (before, None)


def test_system_without_a_module_of_its_own_or_whose_module_cannot_be_found_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "digested_broken" / "__init__.py", "raise SystemError")
    assert system_digest("freq_cache[policy=lfu]") is None
    assert system_digest("no_such_module_anywhere:Mine") is None
    assert system_digest("digested_broken.cache:Mine") is None
    write(tmp_path / "digested_needy.py", "import no_such_package_anywhere\n")
    assert system_digest("digested_needy:Mine") is not None  # whether it can be imported or not
