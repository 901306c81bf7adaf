"""The service on a free port of this machine, for tests that speak HTTP."""

import threading
import time
from contextlib import contextmanager

from costcert.explorer.service import create_app
from costcert.explorer.serving import address, listening, server


@contextmanager
def running(app):
    """The address of this app, while the block runs."""
    socket = listening("127.0.0.1", 0)
    serving = server(app)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + 20
        while not serving.started:
            assert thread.is_alive(), "the service did not start"
            assert time.monotonic() < end, "the service did not start in 20 s"
            time.sleep(0.01)
        yield address(socket, "127.0.0.1")
    finally:
        serving.should_exit = True
        thread.join(20)
        socket.close()


def served(session, **options):
    """The address of a service over this session, while the block runs."""
    return running(create_app(session, **options))
