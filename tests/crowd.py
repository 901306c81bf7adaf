"""Many clients at once against a service, and how often it answered with each status.

python crowd.py ADDRESS CLIENTS SECONDS
"""

import asyncio
import json
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

REQUEST = json.dumps({"image": "7", "patches": ["square:32"], "attack": True}).encode()


def requests(host):
    """Requests of the clients, light and heavy."""
    for path in ("/healthz", "/votes/3", "/certificates?patch=square:16", "/accuracy?patch=square:40"):
        yield f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    head = f"POST /certify HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    yield f"{head}Content-Length: {len(REQUEST)}\r\n\r\n".encode() + REQUEST


async def client(number, where, until, found):
    turn = number
    messages = list(requests(where.netloc))
    reader = writer = None
    while time.monotonic() < until:
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(messages[turn % len(messages)])
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].split("\r\n")[0])
            await reader.readexactly(length)
            found[head.split()[1]] += 1
            if "connection: close" in head:
                writer.close()
                writer = None
            if " 429 " in head.split("\r\n")[0]:
                await asyncio.sleep(0.05)
        except (OSError, asyncio.IncompleteReadError) as error:
            found[type(error).__name__] += 1
            writer = None
        turn += 1
    if writer is not None:
        writer.close()


async def main(address, clients, seconds):
    found = Counter()
    where, until = urlsplit(address), time.monotonic() + seconds
    await asyncio.gather(*(client(number, where, until, found) for number in range(clients)))
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
