"""One picture in, its embedding out. Run: python examples/one_image.py PICTURE"""

import sys

from foveal_client import Client, FovealError

with Client() as client:  # $FOVEAL_URL, or http://127.0.0.1:8000
    try:
        embedding = client.encode(sys.argv[1])
    except FovealError as error:
        sys.exit(f"not encoded: {error}")

print(f"{embedding.model}: {embedding.tokens} tokens, grid {embedding.grid_thw}")
print(f"values {embedding.shape} of {embedding.dtype}")
print("server:", ", ".join(f"{stage} {ms:.1f} ms" for stage, ms in embedding.timings.items()))
for level in embedding.levels:
    print(f"level {level.name}: columns {level.start}..{level.stop}")
