"""Pictures of every kind in one request, compared. Run: python examples/many_images.py [PICTURE ...]"""

import sys

import numpy as np

from foveal_client import Client

sunset = np.zeros((240, 320, 3), np.uint8)
sunset[..., 0] = 255
sunset[..., 1] = np.linspace(0, 160, 240, dtype=np.uint8)[:, None]
chess = np.kron(np.indices((8, 8)).sum(axis=0) % 2, np.ones((32, 32))).astype(np.uint8) * 255

names = ["sunset", "sunset, mirrored", "chess board", *sys.argv[1:]]
images = [sunset, sunset[:, ::-1], chess, *sys.argv[1:]]

with Client() as client:
    embeddings = client.encode(images, output="pooled", normalize=True, dtype="float32")

matrix = np.stack([embedding.values for embedding in embeddings])
print("cosine similarity to the first:")
for name, similarity in zip(names, matrix @ matrix[0], strict=True):
    print(f"  {similarity:6.3f}  {name}")
