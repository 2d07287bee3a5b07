"""For people who live in Locust: pictures of a few sizes to /encode.

    pip install locust pillow
    locust -f deploy/load/locustfile.py --host http://127.0.0.1:8000 --headless --users 50 --run-time 60s

A key of the server is taken from FOVEAL_API_KEY.

Locust's users wait for their answers, so a server that stalls is asked less (a closed loop): its percentiles look
better than what callers who do not wait would see. `foveal bench serve` counts from the moment a request was due.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import struct

from locust import HttpUser, constant_throughput, task
from PIL import Image

SIZES = ((256, 256), (640, 480), (1024, 768), (1080, 1920))
KEY = os.environ.get("FOVEAL_API_KEY", "").split(",")[0]
NUMBERS = itertools.count(random.getrandbits(40))


def picture(width: int, height: int) -> bytes:
    """A JPEG of soft noise."""
    noise = Image.frombytes("RGB", (width // 12, height // 12), os.urandom((width // 12) * (height // 12) * 3))
    sink = io.BytesIO()
    noise.resize((width, height), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=85)
    return sink.getvalue()


PICTURES = [picture(*size) for size in SIZES]


def unseen(body: bytes) -> bytes:
    """The same picture with a number in a comment: an encoder cache has not seen these bytes."""
    text = str(next(NUMBERS)).encode()
    return body[:2] + b"\xff\xfe" + struct.pack(">H", len(text) + 2) + text + body[2:]


class Caller(HttpUser):
    """Asks for one picture a second, if the server lets it."""

    wait_time = constant_throughput(1)

    def on_start(self) -> None:
        """No proxy and no .netrc of the environment: the server is what is measured."""
        self.client.trust_env = False

    @task
    def encode(self) -> None:
        """One raw picture; the error's code is the name of a failure."""
        headers = {"Content-Type": "image/jpeg", "Accept": "application/vnd.foveal.safetensors"}
        if KEY:
            headers["Authorization"] = f"Bearer {KEY}"
        body = unseen(random.choice(PICTURES))
        with self.client.post("/encode", data=body, headers=headers, catch_response=True) as answer:
            if answer.status_code != 200:
                try:
                    answer.failure(answer.json()["error"]["code"])
                except (ValueError, KeyError, TypeError):
                    answer.failure(f"status {answer.status_code}")
