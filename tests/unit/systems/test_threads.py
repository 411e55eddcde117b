"""Threads beside training compute alone, and leave every other thread as it was."""

import threading
from contextlib import closing

import pytest
import torch

from systems.threads import Worker


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def seen_by_a_new_thread() -> int:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


def test_worker_computes_alone_and_threads_before_and_after_it_compute_as_they_did():
    running, leave, seen = threading.Event(), threading.Event(), []

    def begun_before() -> None:
        seen.append(torch.get_num_threads())
        running.set()
        leave.wait(30)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=begun_before)
    thread.start()
    running.wait(30)
    worker = Worker("alone")
    leave.set()
    thread.join()
    assert worker.submit(torch.get_num_threads).result() == 1
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result()
    assert seen == [3, 3]
    assert torch.get_num_threads() == 3
    assert seen_by_a_new_thread() == 3
    worker.close()


def test_threads_that_begin_at_the_same_time_take_nothing_of_each_other():
    with closing(Worker("together", threads=16)) as threads:
        together = threading.Barrier(16)
        tasks = [threads.submit(lambda: (together.wait(30), torch.get_num_threads())[1]) for _ in range(16)]
        assert {task.result() for task in tasks} == {1}
    assert torch.get_num_threads() == seen_by_a_new_thread() == 3


def test_task_of_a_closed_worker_is_an_error_and_no_endless_wait():
    worker = Worker("closed")
    worker.close()
    with pytest.raises(RuntimeError, match="was stopped before"):
        worker.submit(lambda: 5).result()


@pytest.mark.timeout(30)
def test_tasks_that_a_stopped_thread_has_not_begun_end_with_an_error():
    first, second, begun, leave = Worker("first"), Worker("second"), threading.Event(), threading.Event()
    running = first.submit(lambda: (begun.set(), leave.wait(20)))
    begun.wait(20)
    queued = first.submit(lambda: 5)
    waiting = second.submit(queued.result)
    threading.Timer(0.1, leave.set).start()
    first.close()
    second.close()
    assert running.result() == (None, True)
    with pytest.raises(RuntimeError, match="stopped"):
        waiting.result()
