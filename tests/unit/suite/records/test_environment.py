"""What a record says of machine, packages and code, and which changes of code make a measured cell undone."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.records import environment
from suite.records.environment import Gpu, capture, code_digest, git_state, system_digest


class NVMLError(Exception):
    pass


def nvml(*, working: bool = True) -> SimpleNamespace:
    """NVML with two GPUs, `small` at index 0 and `big` at index 1, or one that cannot start."""

    def init() -> None:
        if not working:
            raise NVMLError("driver not loaded")

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: ("small", "big")[index],
        nvmlDeviceGetHandleByUUID={"GPU-1": "big"}.__getitem__,
        nvmlDeviceGetName=lambda handle: f"NVIDIA {handle}",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=16 * 2**30),
        nvmlSystemGetDriverVersion=lambda: "570.10",
        nvmlSystemGetCudaDriverVersion=lambda: 12080,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for package in ("suite", "systems", "workloads"):
        write(tmp_path / package / "__init__.py", f'"""{package}"""\n')
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


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
    ("module", "visible", "model", "name"),
    [
        (nvml(), "1,0", "NVIDIA big", "cuda-GPU-big"),
        (nvml(), "GPU-1", "NVIDIA big", "cuda-GPU-big"),
        (nvml(), "0", "NVIDIA small", "cuda-GPU-small"),
        (nvml(), "", None, "cuda"),
        (nvml(), "-1", None, "cuda"),
        (nvml(working=False), "0", None, "cuda"),
        (None, "0", None, "cuda"),
    ],
)
def test_gpu_is_the_one_that_cuda_shows_and_has_one_name_however_it_was_chosen(
    monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace | None, visible: str, model: str | None, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = environment.visible_gpu()
    assert (gpu.model if gpu else None) == model
    assert environment.device_name("cuda") == name
    assert environment.device_name("cpu") == "cpu"


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


def test_commit_is_that_of_the_project_alone_which_is_dirty_where_a_source_has_changed_or_is_new(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    inner = project / "venv" / "site-packages"
    inner.mkdir(parents=True)
    assert git_state(inner) == git_state(project.parent) == (None, None)
    write(project / "results.md", "published")
    commit, dirty = git_state(project)
    assert (len(commit or ""), dirty) == (40, False)
    new = write(project / "systems" / "untracked.py", "x = 1\n")
    assert git_state(project)[1] is True
    new.unlink()
    write(project / "suite" / "__init__.py", "x = 1\n")
    assert git_state(project)[1] is True
    monkeypatch.setenv("PATH", "")
    assert git_state(project) == (None, None)


def test_code_digest_changes_with_any_source_file_its_name_and_its_content(project: Path) -> None:
    digests = [code_digest(project)]
    for file, text in (
        ("suite/__init__.py", "x = 1\n"),
        ("suite/__init__.py", "x = 2\n"),
        ("systems/a.py", ""),
        ("workloads/streams/profiles.json", "{}"),
        ("suite/run/tables.py", "1"),  # its name is that of a room which only shows
        ("systems/report/new.py", "1"),
    ):
        write(project / file, text)
        digests.append(code_digest(project))
    (project / "systems" / "a.py").rename(project / "systems" / "b.py")
    digests.append(code_digest(project))
    assert len(set(digests)) == len(digests)
    shown = ("suite/tables/new.py", "suite/advise/hardware/new.json")
    for file in (*shown, "suite/__pycache__/x.pyc", "README.md"):
        write(project / file, "1")
    assert code_digest(project) == digests[-1]


def test_digest_of_a_system_of_ones_own_is_that_of_its_module_or_of_the_whole_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    alone = write(tmp_path / "digested_alone.py", "x = 1\n")
    for name in ("__init__", "cache", "policies/lfu"):
        write(tmp_path / "digested_package" / f"{name}.py", "")
    before = [system_digest("digested_alone:Mine[policy=lfu]"), system_digest("digested_package:Mine")]
    write(tmp_path / "digested_stranger.py", "")
    write(tmp_path / "digested_package" / "notes.txt", "1")
    assert [system_digest("digested_alone:Other"), system_digest("digested_package.cache:Mine")] == before
    alone.write_text("x = 2\n")
    write(tmp_path / "digested_package" / "policies" / "lfu.py", "x = 1\n")
    after = [system_digest("digested_alone:Mine"), system_digest("digested_package:Mine")]
    assert len({*before, *after, None}) == 5


def test_system_without_a_module_of_its_own_or_whose_module_cannot_be_found_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "digested_broken" / "__init__.py", "raise SystemError")
    for system in ("freq_cache[policy=lfu]", "no_such_module_anywhere:Mine", "digested_broken.cache:Mine"):
        assert system_digest(system) is None
    write(tmp_path / "digested_needy.py", "import no_such_package_anywhere\n")
    assert system_digest("digested_needy:Mine") is not None  # whether it can be imported or not
