"""End to end with a real vLLM on the CPU: pictures given to it directly against embeddings handed over by foveal."""
