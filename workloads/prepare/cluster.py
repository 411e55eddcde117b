"""Runs the tasks of a step of a preparation on the workers of a Dask cluster."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from workloads import DataError
from workloads.prepare.workspace import Advance

CONNECT_S = 10
Task = TypeVar("Task")
Result = TypeVar("Result")


class Cluster:
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
        except (OSError, ValueError) as error:
            problem = f"no Dask scheduler answers at {address} ({error}): start one, or leave out --scheduler"
            raise DataError(problem) from error
        if not self._client.scheduler_info()["workers"]:
            self.close()
            raise DataError(f"the Dask scheduler at {address} has no workers: start some with dask worker {address}")

    def run(
        self, function: Callable[[Task, Advance], Result], tasks: Sequence[Task], finish: Callable[[int], None]
    ) -> list[Result]:
        """Run tasks that do not depend on each other; results come in order, the first error ends the step.

        `finish` is told of whole tasks, by position. A task skips what an earlier run has finished.

        Raises:
            DataError: workers died.
        """
        from distributed import KilledWorker

        futures = self._client.map(lambda task: function(task, lambda _: None), tasks, pure=False)
        results = []
        try:
            for position, future in enumerate(futures):  # in order, so that the first bad file is the one reported
                results.append(future.result())
                finish(position)
        except KilledWorker as error:
            remedy = "give them more memory than --memory says, and run again"
            raise DataError(f"workers died at their task ({error}): {remedy}") from error
        finally:
            self._client.cancel(futures)
        return results

    def close(self) -> None:
        """Leave the cluster as it is."""
        self._client.close()
