"""What a worker leaves: its output, however much, and processes that got away from it."""

import os
import time
from threading import Thread

import pytest

from suite.records.record import Status
from suite.run import logs
from suite.run.kill import runs
from suite.run.logs import Log, last_line
from suite.run.process import Limits

pytestmark = pytest.mark.timeout(60)

DONE = """os.write(fd, b'{"kind": "outcome", "status": "ok"}\\n')"""


def test_output_without_end_is_cut_and_its_worker_is_not_waited_for_or_killed(worker, tmp_path):
    run = worker(f"""
        end = time.monotonic() + 2
        os.write(1, b"the first line\\n")
        written = 0
        while time.monotonic() < end:
            written += os.write(1, b"x" * 999 + b"\\n")
        os.write(2, b"%d bytes, the last line\\n" % written)
        {DONE}
        time.sleep(60)
    """)
    assert run().outcome.status is Status.OK
    log = tmp_path / "logs" / "a.log"
    assert log.stat().st_size <= logs.MOST_BYTES
    lines = log.read_text().splitlines()
    assert lines[0] == "the first line"
    written = int(last_line(log).removesuffix(" bytes, the last line"))
    assert written > 2 * logs.MOST_BYTES
    assert "\0" not in log.read_text()
    (cut,) = [line for line in lines if line.endswith(" bytes of output were cut out here]")]
    cut_bytes = int(cut.split()[0].lstrip("[").replace(",", ""))
    assert 0 < written - cut_bytes <= logs.MOST_BYTES


def test_worker_that_is_killed_in_the_middle_of_its_output_leaves_a_log_that_is_cut(worker, tmp_path):
    run = worker("""
        while True:
            os.write(1, b"y" * 999 + b"\\n")
    """)
    ended = run(Limits(wall_s=1.5, stall_s=40, host_bytes=8 * 10**9))
    assert ended.outcome.status is Status.TIMEOUT
    assert (tmp_path / "logs" / "a.log").stat().st_size <= logs.MOST_BYTES


@pytest.mark.parametrize("holes", [True, False])
def test_log_keeps_its_beginning_and_its_end_whatever_the_file_system_can_do(tmp_path, monkeypatch, holes):
    block = os.statvfs(tmp_path).f_bsize
    monkeypatch.setattr(logs, "MOST_BYTES", 16 * block)
    monkeypatch.setattr(logs, "KEPT_BYTES", 2 * block)
    if not holes:
        monkeypatch.setattr(logs, "_free", lambda *_: False)
    log = Log(tmp_path / "a" / "b.log")
    numbers = [f"{number:015}\n" for number in range(8 * block)]
    with open(log.fileno(), "w", closefd=False) as stream:
        for start in range(0, len(numbers), block):
            stream.writelines(numbers[start : start + block])
            stream.flush()
            log.cut()
            assert log.path.stat().st_blocks * 512 <= 20 * block
    log.close()
    text = log.path.read_text()
    kept = 2 * block // 16
    beginning, _, rest = text.partition("\n[")
    count, _, end = rest.partition(" bytes of output were cut out here]\n")
    assert beginning == "".join(numbers[:kept])
    assert end == "".join(numbers[-kept:])
    assert int(count.replace(",", "")) == 16 * (len(numbers) - 2 * kept)


def test_short_log_is_left_as_it_is(tmp_path):
    log = Log(tmp_path / "a.log")
    with open(log.fileno(), "w", closefd=False) as stream:
        stream.write("one\ntwo\n")
    log.close()
    assert log.path.read_text() == "one\ntwo\n"


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
