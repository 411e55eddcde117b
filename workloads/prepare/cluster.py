"""Runs the tasks of a step on the workers of a Dask cluster."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from workloads import DataError

Advance = Callable[[int], None]
"""Called by a task, again and again, with the bytes or rows that it has done."""
Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done and how much there is: bytes while reading, rows in other
steps; 0 where it is not known."""


CONNECT_S = 10
Task = TypeVar("Task")
Result = TypeVar("Result")


class OnCluster:
    """A Dask cluster. Its workers see the same files under the same names, and have one thread each."""

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

    def run(
        self, function: Callable[[Task, Advance], Result], tasks: Sequence[Task], finish: Callable[[int], None]
    ) -> list[Result]:
        """Run tasks that do not depend on each other; results come in order, the first error ends the step.

        `finish` is told of whole tasks, by position. A task skips what an earlier run has finished.
        """
        from distributed import KilledWorker

        futures = self._client.map(function, tasks, [_unheard] * len(tasks), pure=False)
        results = []
        try:
            for position, future in enumerate(futures):  # in order, so that the first bad file is the one reported
                results.append(future.result())
                finish(position)
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


def _unheard(_done: int) -> None:
    """An `Advance` that does nothing."""
