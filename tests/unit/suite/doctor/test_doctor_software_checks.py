"""What the checks of packages, Python and the environment say; imports and the sample are taken for real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from fabricated_machine import VERSIONS, healthy

from suite.doctor import packages, probes, python_state
from suite.doctor.finding import Level, Unsaid
from suite.doctor.imports import Imported, import_all
from suite.doctor.sample import CpuTimes, cpu_times, own_family, running, watch

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def machine(tmp_path):
    return healthy(tmp_path)


def installed(machine, **versions):
    changed = VERSIONS | {name.replace("_", "-"): version for name, version in versions.items()}
    return replace(machine, version=changed.get)


# packages


@pytest.mark.parametrize(
    ("torch", "fbgemm", "torchrec", "level"),
    [
        ("2.13.0+cpu", "1.8.0", "1.8.0", "ok"),
        ("2.12.1+cu128", "1.7.0", "1.7.1", "ok"),
        ("2.11.0", "1.6.0", "1.6.0", "ok"),
        ("2.12.1", "1.8.0", "1.8.0", "problem"),
        ("2.13.0", "1.8.0", "1.7.0", "problem"),
        ("2.14.0", "1.9.0", "1.9.0", "warning"),
        ("2.13.0", None, "1.8.0", "problem"),
        (None, "1.8.0", "1.8.0", "problem"),
    ],
)
def test_only_releases_built_for_each_other_are_well(machine, torch, fbgemm, torchrec, level):
    answer = packages.matching_packages(
        installed(machine, torch=torch, fbgemm_gpu_cpu=fbgemm, torchrec=torchrec, torchmetrics="1.0.3")
    )
    assert answer.level == level


def test_mismatch_says_what_belongs_together(machine):
    answer = packages.matching_packages(installed(machine, torch="2.12.0"))
    assert "with torch 2.12 belong fbgemm 1.7 and torchrec 1.7" in answer.seen


@pytest.mark.parametrize(("version", "said"), [("1.4.0", "torchmetrics 1.4.0"), (None, "torchmetrics is missing")])
def test_another_torchmetrics_than_torchrecs_own_is_a_problem(machine, version, said):
    answer = packages.matching_packages(installed(machine, torchmetrics=version))
    assert answer.level is Level.PROBLEM
    assert said in answer.seen


def built_for(machine, cuda, **versions):
    machine = installed(machine, **versions)
    return replace(machine, imports=lambda: {"torch": Imported(built_for=cuda)})


def test_both_builds_of_fbgemm_at_once_are_a_problem(machine):
    answer = packages.fbgemm_build(built_for(machine, "", fbgemm_gpu="1.8.0"))
    assert answer.level is Level.PROBLEM
    assert "both installed" in answer.seen


def test_builds_of_fbgemm_and_torch_belong_together(machine):
    cuda_fbgemm = {"fbgemm_gpu": "1.8.0", "fbgemm_gpu_cpu": None}
    assert packages.fbgemm_build(built_for(machine, "")).level is Level.OK
    assert packages.fbgemm_build(built_for(machine, "12.8", **cuda_fbgemm)).level is Level.OK
    assert packages.fbgemm_build(built_for(machine, "", **cuda_fbgemm)).level is Level.PROBLEM
    assert packages.fbgemm_build(built_for(machine, "12.8")).level is Level.WARNING


def test_build_is_unknown_without_fbgemm_or_torch(machine):
    with pytest.raises(Unsaid, match="not installed"):
        packages.fbgemm_build(installed(machine, fbgemm_gpu_cpu=None))
    with pytest.raises(Unsaid, match="torch does not import"):
        packages.fbgemm_build(replace(machine, imports=lambda: {"torch": Imported(error="OSError")}))


def test_versions_other_than_the_pinned_are_a_warning_that_names_both(machine):
    assert packages.pinned_versions(machine).level is Level.OK
    answer = packages.pinned_versions(installed(machine, numpy="2.5.0", tensordict=None))
    assert answer.level is Level.WARNING
    assert "numpy 2.5.0 (2.4.6)" in answer.seen
    assert "tensordict is missing (0.15.3)" in answer.seen
    assert "torch" not in answer.seen.replace("tensordict", "")


def test_installation_without_requirement_files_is_unknown(machine, tmp_path):
    with pytest.raises(Unsaid, match=r"base\.txt cannot be read"):
        packages.pinned_versions(replace(machine, project=tmp_path / "elsewhere"))


def test_package_that_does_not_import_is_a_problem_with_its_error(machine):
    assert packages.imports(machine).level is Level.OK
    failed = {"torch": Imported(), "fbgemm_gpu": Imported(error="OSError: libcudart.so.12: cannot open")}
    answer = packages.imports(replace(machine, imports=lambda: failed))
    assert answer.level is Level.PROBLEM
    assert answer.seen == "import fbgemm_gpu: OSError: libcudart.so.12: cannot open"


# imports, for real


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules of our own, one for each way to fail."""
    (tmp_path / "whole_module.py").write_text("print('chatter')\n")
    (tmp_path / "broken_module.py").write_text("raise OSError('first line\\nlibrary.so: cannot open')\n")
    (tmp_path / "deadly_module.py").write_text("import os, sys\nprint('last words', file=sys.stderr)\nos._exit(9)\n")
    (tmp_path / "killed_module.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "endless_module.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_each_failure_is_told_under_its_own_name_and_the_rest_goes_on(modules):
    found = import_all(["deadly_module", "broken_module", "killed_module", "not_there", "whole_module"])
    assert {name: imported.error for name, imported in found.items()} == {
        "deadly_module": "it ended the process with exit code 9: last words",
        "broken_module": "OSError: library.so: cannot open",
        "killed_module": "it ended the process with signal 11",
        "not_there": "ModuleNotFoundError: No module named 'not_there'",
        "whole_module": "",
    }


def test_import_that_hangs_is_ended_and_named(modules):
    start = time.monotonic()
    found = import_all(["whole_module", "endless_module", "broken_module"], timeout_s=2.0)
    assert time.monotonic() - start < 60
    assert found["endless_module"].error == "did not import in time"
    assert "broken_module" not in found


def test_torch_says_its_threads_and_build():
    torch = import_all(["torch"])["torch"]
    assert torch.error == ""
    assert torch.threads >= 1
    assert torch.built_for is not None
    assert torch.sees_gpu in (True, False)


# Python and the environment


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"debug_build": True}, "debug build"),
        ({"optimized": 1}, "assertions"),
        ({"development": True}, "-X dev"),
        ({"traced_by": "coverage"}, "coverage follows"),
    ],
)
def test_python_that_checks_or_follows_itself_is_a_warning(machine, state, said):
    assert python_state.interpreter(machine).level is Level.OK
    answer = python_state.interpreter(replace(machine, interpreter=lambda: probes.Interpreter(**state)))
    assert answer.level is Level.WARNING
    assert said in answer.seen


def asked_of_python(*options, before=""):
    script = f"{before}\nfrom suite.doctor.probes import interpreter\nprint(interpreter())"
    # this process may itself be followed by coverage, which its children would inherit
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def test_real_python_tells_its_switches_and_who_follows_it():
    assert "traced_by=''" in asked_of_python()
    assert "optimized=1" in asked_of_python("-O")
    assert "development=True" in asked_of_python("-X", "dev")
    tracer = "import sys\nsys.settrace(lambda *_: None)"
    assert "traced_by='__main__'" in asked_of_python(before=tracer)


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, "ok"),
        ({"CUDA_LAUNCH_BLOCKING": "0", "NUMBA_DISABLE_JIT": ""}, "ok"),
        ({"PYTHONMALLOC": "pymalloc"}, "ok"),
        ({"PYTHONMALLOC": "debug"}, "warning"),
        ({"PYTHONMALLOC": "malloc"}, "warning"),
        ({"COVERAGE_PROCESS_START": "setup.cfg"}, "warning"),
        ({"LD_PRELOAD": "libasan.so"}, "warning"),
        ({"NUMBA_DISABLE_JIT": "1"}, "problem"),
        ({"CUDA_LAUNCH_BLOCKING": "1", "PYTHONTRACEMALLOC": "5"}, "problem"),
    ],
)
def test_variables_that_slow_everything_down_are_found(machine, environment, level):
    answer = python_state.variables(replace(machine, environment=environment))
    assert answer.level == level
    if level != "ok":
        assert answer.remedy == f"`unset {' '.join(environment)}`."


def test_cache_of_compiled_loops_that_cannot_be_written_is_a_warning(machine):
    closed = replace(machine, writable=lambda path: path.parent.name != "workloads")
    assert python_state.compiled_cache(machine).level is Level.OK
    answer = python_state.compiled_cache(closed)
    assert answer.level is Level.WARNING
    assert "workloads" in answer.seen
    assert "freq_cache" not in answer.seen
    elsewhere = replace(closed, environment={"NUMBA_CACHE_DIR": "/var/cache/numba"})
    assert python_state.compiled_cache(elsewhere).level is Level.OK


def test_real_probes_agree_with_the_system(tmp_path):
    assert probes.version("pytest") == pytest.__version__
    assert probes.version("no-such-distribution") is None
    assert probes.affinity() == os.sched_getaffinity(0)
    assert probes.load_average() >= 0
    disk = probes.disk(tmp_path / "not" / "there")
    assert 0 < disk.free_bytes <= disk.total_bytes
    script = (
        "import resource\nresource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "from suite.doctor.probes import limits\nprint(limits())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "Limits(address_space_bytes=None, locked_bytes=4096)\n"


@pytest.mark.parametrize(
    ("name", "probe"), [("sched_getaffinity", probes.affinity), ("getloadavg", probes.load_average)]
)
def test_operating_system_without_a_probe_is_unknown(monkeypatch, name, probe):
    monkeypatch.delattr(os, name)
    with pytest.raises(Unsaid, match="this operating system"):
        probe()


def test_directory_that_would_be_made_is_as_writable_as_the_one_above(tmp_path):
    assert probes.writable(tmp_path / "a" / "b")
    assert probes.existing(tmp_path / "a" / "b") == tmp_path
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_closed_directory_is_not_writable(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    assert not probes.writable(tmp_path / "closed" / "below")


# the sample


def counts(tmp_path):
    """/proc/stat of a machine whose every CPU was as busy as it is told."""
    path = tmp_path / "stat"

    def write(*, busy_s, stolen_s=0.0):
        row = f"{int(busy_s * TICKS)} 0 0 1000 0 0 0 {int(stolen_s * TICKS)} 0 0"
        cpus = range(os.cpu_count() or 1)
        path.write_text("cpu 1 2 3\n" + "".join(f"cpu{cpu} {row}\n" for cpu in cpus) + "intr 5\n")

    return path, write


def watched(tmp_path, *, before, after, write=None, stat=None, family=frozenset({1})):
    states = iter([before, after])
    ticks = iter([10.0, 12.0])

    def sleep(seconds):
        assert seconds == 2.0
        if write is not None:
            write()

    return watch(
        2.0,
        stat=stat or tmp_path / "absent",
        processes=lambda: next(states),
        family=lambda: set(family),
        sleep=sleep,
        clock=lambda: next(ticks),
    )


def test_others_are_all_but_us_and_our_parents_busiest_first(tmp_path):
    before = {(1, 0.0): ("me", 5.0), (2, 0.0): ("old", 7.0), (3, 0.0): ("idle", 1.0), (4, 0.0): ("reused", 9.0)}
    after = {
        (1, 0.0): ("me", 6.5),
        (2, 0.0): ("old", 7.5),
        (3, 0.0): ("idle", 1.0),
        (4, 11.0): ("reused", 0.25),
        (5, 11.0): ("new", 1.0),
        (6, 11.0): ("small", 0.125),
    }
    sample = watched(tmp_path, before=before, after=after)
    assert [(busy.name, busy.pid, busy.cpu_s) for busy in sample.top] == [
        ("new", 5, 1.0),
        ("old", 2, 0.5),
        ("reused", 4, 0.25),
    ]
    assert sample.others_s == 1.875
    assert sample.wall_s == 2.0
    assert sample.stolen_s is None


def test_processes_that_nobody_can_name_are_counted(tmp_path):
    stat, write = counts(tmp_path)
    write(busy_s=100, stolen_s=1)
    sample = watched(
        tmp_path,
        before={(1, 0.0): ("me", 5.0)},
        after={(1, 0.0): ("me", 5.5)},
        write=lambda: write(busy_s=101, stolen_s=1.25),
        stat=stat,
    )
    assert sample.cpus == len(os.sched_getaffinity(0))
    assert sample.others_s == pytest.approx(sample.cpus * 1.0 - 0.5)
    assert sample.stolen_s == pytest.approx(sample.cpus * 0.25)
    assert sample.top == ()


def test_machine_that_shows_no_process_is_unknown(tmp_path):
    with pytest.raises(Unsaid, match="no process"):
        watched(tmp_path, before={}, after={})


def test_seconds_of_the_wanted_cpus_are_summed():
    text = "cpu  9 9 9 9\ncpu0 100 20 30 900 50 1 2 40 7 0\ncpu1 200 0 0 900 0 0 0 0 0 0\nctxt 1\n"
    assert cpu_times(text, [0]) == CpuTimes(busy_s=153 / TICKS, stolen_s=40 / TICKS)
    assert cpu_times(text, [0, 1]).busy_s == 353 / TICKS
    with pytest.raises(Unsaid, match="CPU 2"):
        cpu_times(text, [0, 2])


def test_real_processes_are_seen_and_our_parents_are_ours():
    seen = {pid for pid, _ in running()}
    assert os.getpid() in seen
    assert {os.getpid(), os.getppid()} <= own_family()


def test_busy_neighbour_is_found_for_real():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            sample = watch(1.0)
            took = psutil.Process(neighbour.pid).cpu_times().user
        finally:
            neighbour.kill()
    assert took > 0
    assert sample.others_s > 0
    assert sample.top
