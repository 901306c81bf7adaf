"""The service on a free port of this machine, for tests that speak HTTP."""

import threading
from contextlib import contextmanager

from costcert.explorer.service import create_app
from costcert.explorer.serving import address, listening, server
from waiting import HANGS, wait_until


@contextmanager
def running(app):
    """The address of this app, while the block runs."""
    socket = listening("127.0.0.1", 0)
    serving = server(app)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: serving.started or not thread.is_alive())
        assert serving.started, "the service did not start"
        yield address(socket, "127.0.0.1")
    finally:
        serving.should_exit = True
        thread.join(HANGS)
        socket.close()


def served(session, **options):
    """The address of a service over this session, while the block runs."""
    return running(create_app(session, **options))
