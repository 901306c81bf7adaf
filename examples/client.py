"""A client of `costcert explore`: certificates of its images and of a picture; needs only Python.

costcert explore --demo --no-browser &
python examples/client.py http://127.0.0.1:8710 [PICTURE]
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}


class Service:
    """A service that may be busy: requests are sent again after the time in Retry-After."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(self, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        headers = {**self.headers, **({"Content-Type": kind} if body is not None else {})}
        message = urllib.request.Request(self.address + path, body, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(message, timeout=60) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise SystemExit(f"{error.code}: {error.read().decode()}") from None
            time.sleep(float(error.headers.get("Retry-After", "1")))
        return self.request(path, body, kind)


def main(address: str, picture: str | None = None) -> None:
    service = Service(address, os.environ.get("COSTCERT_TOKEN"))
    about = service.request("/about")
    names = about["class_names"] or [f"class {label}" for label in range(about["num_classes"])]
    patch = f"square:{about['sides'][len(about['sides']) // 3]}"

    image = service.request("/images")["ids"][0]
    votes = service.request(f"/votes/{quote(image)}")
    print(f"{image}: {names[votes['truth']]}, {len(votes['ballots'])} ballots")

    body = json.dumps({"image": image, "patches": [patch]}).encode()
    (found,) = service.request("/certify", body)["certificates"]
    for defender, certificate in found["defenders"].items():
        print(f"  {defender}: {promise(certificate['min_k'], len(names))} under any {patch} sticker")

    if picture is not None:
        path = Path(picture)
        content, kind = path.read_bytes(), KINDS.get(path.suffix.lower(), "image/jpeg")
        top = service.request("/predict?k=3", content, kind)["top"]
        print(f"{path.name}: {', '.join(names[each['label']] for each in top)}")
        answer = service.request(f"/certify?patch={patch}", content, kind)
        min_k = answer["certificates"][0]["defenders"]["costcert"]["min_k"]
        # Whether the picture shows the predicted label is not known; ?label=3 certifies another one.
        label = f"{names[answer['label']]} (predicted)"
        print(f"  {label} {promise(min_k, len(names))} under any {patch} sticker")


def promise(min_k: int, classes: int) -> str:
    """What min-k says: a list of all labels contains every label, so that promises nothing."""
    return f"stays in the top {min_k}" if min_k < classes else "may end last: nothing is promised"


if __name__ == "__main__":
    main(*sys.argv[1:3])
