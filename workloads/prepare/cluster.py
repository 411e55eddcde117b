"""Where the steps of a preparation run: in this process, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

from workloads.errors import DataError
from workloads.prepare.memory_bound import threads
from workloads.prepare.parsing import Advance

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 10
Task = TypeVar("Task")
Result = TypeVar("Result")
_Task_contra = TypeVar("_Task_contra", contravariant=True)
_Result_co = TypeVar("_Result_co", covariant=True)


class Step(Protocol[_Task_contra, _Result_co]):
    """A function of one task, importable by its name so that another process can run it."""

    def __call__(self, task: _Task_contra, advance: Advance = ..., /) -> _Result_co:
        """Do the task and say how far it is; what an earlier run has finished is not done again."""


class Listener(Protocol):
    """Told how far the tasks of a step are."""

    def advance(self, position: int) -> Advance:
        """The listener of one task."""

    def finish(self, position: int) -> None:
        """A task is done."""


class Runner(Protocol):
    """Runs the tasks of one step; results come in the order of the tasks, the first error ends the step."""

    @property
    def at_once(self) -> int:
        """Tasks that share one process's memory."""

    def run(self, function: Step[Task, Result], tasks: Sequence[Task], listener: Listener) -> list[Result]:
        """Run all tasks.

        Args:
            function: What to do with a task.
            tasks: Tasks that do not depend on each other.
            listener: Told how far each task is.
        """


class InTurn:
    """One task after the other: for steps that use all cores themselves."""

    at_once = 1

    def run(self, function: Step[Task, Result], tasks: Sequence[Task], listener: Listener) -> list[Result]:
        """Run all tasks."""
        return [function(task, listener.advance(position)) for position, task in enumerate(tasks)]


class InThreads:
    """One task per core: for steps whose tasks use one."""

    at_once = threads()

    def run(self, function: Step[Task, Result], tasks: Sequence[Task], listener: Listener) -> list[Result]:
        """Run all tasks."""
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(function, tasks, map(listener.advance, range(len(tasks)))))


class OnCluster:
    """Tasks on the workers of a Dask cluster, which see the same files under the same names."""

    at_once = 1  # in each worker: start them with one thread

    def __init__(self, address: str) -> None:
        """Connect.

        Raises:
            DataError: Dask is not installed, or nothing answers at the address.
        """
        try:
            from distributed import Client
        except ImportError as error:
            raise DataError("--scheduler needs Dask: pip install dask distributed, here and on the workers") from error
        try:
            self._client: Client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise DataError(
                f"no Dask scheduler answers at {address} ({error}): start one, or leave out --scheduler"
            ) from error
        if not self._client.scheduler_info()["workers"]:
            self.close()
            raise DataError(f"the Dask scheduler at {address} has no workers: start some with dask worker {address}")

    def run(self, function: Step[Task, Result], tasks: Sequence[Task], listener: Listener) -> list[Result]:
        """Run all tasks."""
        from distributed import KilledWorker

        futures = self._client.map(function, tasks, pure=False)
        results = []
        try:
            for position, future in enumerate(futures):  # in order, so that the first bad file is the one reported
                results.append(future.result())
                listener.finish(position)
        except KilledWorker as error:
            raise DataError(
                f"workers died at their task ({error}): give them more memory than --memory says, and run again"
            ) from error
        except BaseException:
            self._client.cancel(futures)
            raise
        return results

    def close(self) -> None:
        """Leave the cluster as it is."""
        self._client.close()
