"""From a picture to the tensors that a decoupled LLM takes. Needs torch. Run: python examples/to_torch.py PICTURE"""

import sys

from foveal_client import Client

with Client() as client:
    embedding = client.encode(sys.argv[1], output="tokens", dtype="bfloat16")

tensor = embedding.torch()  # the same memory as the answer, no copy
print("image_embeds:", tuple(tensor.shape), tensor.dtype)
print("image_grid_thw:", list(embedding.grid_thw))
if embedding.levels:  # a deepstack model: main features, then one part for each early layer of the LLM
    for level in embedding.levels:
        print(f"{level.name}:", tuple(tensor[:, level.start : level.stop].shape))
