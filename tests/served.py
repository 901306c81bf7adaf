"""The service on a free port of this machine, and what tests over HTTP share."""

import io
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

import costcert as cc
from costcert.explorer.service import create_app
from costcert.explorer.serving import address, listening, server

# Seconds, far more than anything here takes on a busy machine: only a test that fails waits this long.
LONG = 300.0
PNG = {"content-type": "image/png"}


def wait_until(condition):
    """Wait for a condition, and return its value."""
    end = time.monotonic() + LONG
    while not (value := condition()):
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.01)
    return value


@contextmanager
def running(app):
    """The address of this app, while the block runs."""
    bound = listening("127.0.0.1", 0)
    serving = server(app)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: serving.started or not thread.is_alive())
        assert thread.is_alive(), "the service did not start"
        yield address(bound, "127.0.0.1")
    finally:
        serving.should_exit = True
        thread.join(LONG)
        bound.close()


def served(session, **options):
    """The address of a service for this session, while the block runs."""
    return running(create_app(session, **options))


def connect(where):
    return socket.create_connection(("127.0.0.1", urlsplit(where).port), timeout=LONG)


def head(where, line="GET /healthz", *fields):
    """The head of a request, without the empty line that ends it."""
    lines = (f"{line} HTTP/1.1", f"Host: {urlsplit(where).netloc}", *fields)
    return "".join(f"{each}\r\n" for each in lines).encode()


def half_body(where, line="POST /certify", content_type="application/json"):
    """A request whose body is not sent completely."""
    return head(where, line, f"Content-Type: {content_type}", "Content-Length: 50000") + b"\r\n{"


def picture(kind="PNG", size=(9, 7), seed=0):
    """Random pixels, and the same as a file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return pixels, file.getvalue()


def imagenet_votes(images, seed=0):
    """Random votes of the size of ImageNet's: 224 mutants and 1000 classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 1000, images)
    ballots = np.where(rng.random((images, 224)) < 0.4, truth[:, None], rng.integers(0, 1000, (images, 224)))
    return cc.Votes(ballots, truth, num_classes=1000, ablation="columns:19", image_size=224)
