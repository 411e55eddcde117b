"""Batches made by other processes: the same as without them, in order, and nothing is left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.unit.workloads.produced import FAILING, SAMPLES, SLOW, Bags, equal, nothing_to_open
from workloads.batch import Split
from workloads.producer import Producer, ProducerDied

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(120)


def named_memory(pids):
    """Files of /dev/shm that processes have mapped and that still have a name."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {line for line in lines if "/dev/shm" in line and not line.endswith("(deleted)")}


def ended(pids):
    end = time.monotonic() + 60
    while time.monotonic() < end and any(map(runs, pids)):
        time.sleep(0.05)
    return not any(map(runs, pids))


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # nobody may reap it
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_batches_come_in_order_failures_raise_in_their_turn_and_killed_workers_are_noticed():
    with Producer(Bags, total=SLOW + 1, workers=2, slots=3) as producer:
        producer.settle()  # all slots are full now
        pids = [child.pid for child in multiprocessing.active_children()]
        assert named_memory([os.getpid(), *pids]) == set()
        taken = [producer.take() for _ in range(FAILING)]
        assert all(equal(batch, Bags().batch(index, Split.TRAIN)) for index, batch in enumerate(taken))
        assert taken[-1].features.values().numel() > 3 * SAMPLES  # more than the slots held at first
        with pytest.raises(ValueError, match="four is not to be had") as caught:
            producer.take()
        assert "produced.py" in caught.value.__notes__[0]
        with pytest.raises(RuntimeError, match="Refused: no batch 5: not this one either"):
            producer.take()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        died = rf"producer process \d+ was killed by signal 9, SIGKILL .* before it had made batch {SLOW}"
        with pytest.raises(ProducerDied, match=died):
            producer.take()
    assert len(set(pids)) == 2
    assert ended(pids)


@pytest.mark.slow
def test_workload_that_cannot_be_opened_says_so_when_a_batch_is_taken():
    opened = Producer(nothing_to_open, total=1, workers=1, slots=1)
    with opened as producer, pytest.raises(FileNotFoundError, match="no data in this place"):
        producer.take()


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_terminated_and_leave_nothing_behind(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing
        import time
        from tests.unit.workloads.produced import Bags
        from workloads.producer import Producer

        if __name__ == "__main__":
            with Producer(Bags, total=3, workers=1, slots=2) as producer:
                producer.take()
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
                time.sleep(60)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 1
        assert named_memory([parent.pid, *pids]) == set()  # so nothing is left, however they end
        parent.terminate()
        _, errors = parent.communicate(timeout=30)
    assert ended(pids)
    assert "resource_tracker" not in errors
    assert "Traceback" not in errors
