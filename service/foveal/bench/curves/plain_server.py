"""What one would write first: FastAPI, transformers' image processor and vision tower, one image a request.

    python -m foveal.bench.curves.plain_server --model FOLDER [--device cuda] [--port 0]

It is no straw man: preprocessing on the device where torchvision's processor is there, bfloat16 on a GPU, sdpa
attention, pictures decoded in threads while another is encoded, raw bytes as the answer, uvloop and httptools.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from PIL import Image

from foveal.bench.reference import build_model
from foveal.families.catalogue import local_spec

THREADS = 4
"""Pictures that are decoded and prepared at once; more only contend for the interpreter."""


class Encoder:
    """Image bytes to the bytes of their embedding."""

    def __init__(self, model: str, device: str) -> None:
        from transformers import AutoImageProcessor

        spec = local_spec(model, dummy_weights=True)
        self.kind = spec.default_output
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.processor: Any = AutoImageProcessor.from_pretrained(spec.folder)  # type: ignore[no-untyped-call]
        _, tower = build_model(spec.folder, self.device)
        self.tower: Any = tower.to(self.dtype).eval()
        # torchvision's processors take a device, Pillow's do not
        is_on_device = self.device.type == "cuda" and "Pil" not in type(self.processor).__name__
        self._where = {"device": self.device} if is_on_device else {}
        self._turn = threading.Lock()

    def encode(self, body: bytes) -> memoryview:
        """[rows, width] or [width] in the tower's dtype, row after row."""
        with Image.open(io.BytesIO(body)) as image:
            inputs = self.processor(images=image.convert("RGB"), return_tensors="pt", **self._where)
        with self._turn, torch.inference_mode():
            found = self.tower(*(self._placed(tensor) for tensor in inputs.values()))
            embedding = found.pooler_output
            if levels := getattr(found, "deepstack_features", None):
                embedding = torch.cat([embedding, *levels], dim=1)
            rows = embedding.contiguous().view(torch.uint8).cpu()
        return memoryview(rows.numpy().reshape(-1))

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def create_app(encoder: Encoder) -> FastAPI:
    """POST /encode with an image as the body."""
    app, threads = FastAPI(), ThreadPoolExecutor(THREADS)

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/info")
    async def info() -> dict[str, object]:
        about = {"processor": type(encoder.processor).__name__, "tower": type(encoder.tower).__name__}
        return {**about, "device": str(encoder.device), "dtype": str(encoder.dtype), "threads": THREADS}

    @app.post("/encode")
    async def encode(request: Request) -> Response:
        body = await request.body()
        rows = await asyncio.get_running_loop().run_in_executor(threads, encoder.encode, body)
        return Response(rows, media_type="application/octet-stream")

    return app


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder with config.json, or builtin:NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    app = create_app(Encoder(args.model, args.device))
    with contextlib.closing(socket.create_server(("127.0.0.1", args.port), backlog=4096)) as sock:
        print(f"plain server listens on http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning", access_log=False, loop="uvloop", http="httptools")
        uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
