"""Processes that got away from a worker end with it."""

import time
from threading import Thread

import pytest

from suite.run.process import Limits
from suite.run.resources import runs

pytestmark = pytest.mark.timeout(60)

DONE = """os.write(fd, b'{"kind": "outcome", "status": "ok"}\\n')"""


@pytest.mark.parametrize(
    "end", [f"{DONE}; time.sleep(60)", DONE, "os.kill(os.getpid(), 9)", "sys.exit(3)", "time.sleep(60)"]
)
def test_process_that_left_session_parent_and_environment_ends_with_its_worker(worker, tmp_path, end):
    told = tmp_path / "told"
    run = worker(f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                open({str(told)!r}, "w").write(str(os.getpid()))
                os.execve("/bin/sleep", ["sleep", "600"], {{}})
            os._exit(0)
        os.wait()
        while not os.path.exists({str(told)!r}) or not open({str(told)!r}).read():
            time.sleep(0.01)
        {end}
    """)
    run(Limits(wall_s=3, stall_s=40, host_bytes=8 * 10**9))
    assert not runs(int(told.read_text()))


def test_process_that_got_away_from_one_worker_is_left_alone_while_that_one_lives(worker, tmp_path):
    """The end of another worker, forked by the same process, is no reason to kill it."""
    told, ended = tmp_path / "told", tmp_path / "ended"
    run = worker(f"""
        os.environ.clear()
        if os.path.exists({str(told)!r}):
            {DONE}
            sys.exit()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open({str(told)!r}, "w").write(str(os.getpid()))
                os.execve("/bin/sleep", ["sleep", "600"], {{}})
            os._exit(0)
        while not os.path.exists({str(ended)!r}):
            time.sleep(0.01)
        {DONE}
    """)
    first = Thread(target=run)
    first.start()
    while not told.exists() or not told.read_text():
        time.sleep(0.01)
    run()
    time.sleep(0.2)
    alive = runs(int(told.read_text()))
    ended.touch()
    first.join()
    assert alive
    assert not runs(int(told.read_text()))
