"""Waiting for a condition instead of for some time: no test depends on the speed of the machine."""

import time

# Seconds after which something hangs. A busy machine takes a small part of that.
HANGS = 600


def wait_until(condition, running=None):
    """Return as soon as `condition()` holds.

    Args:
        running: a process (`subprocess.Popen`) which must not end before.
    """
    end = time.monotonic() + HANGS
    while True:
        ended = running is not None and running.poll() is not None
        if condition():
            return
        assert not ended, f"the process ended with {running.returncode} before"
        assert time.monotonic() < end, f"this did not happen within {HANGS} s"
        time.sleep(0.01)
