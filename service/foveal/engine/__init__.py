"""One request's path from bytes to embeddings: admission, cache, prep, queue, packing, workers. asyncio only."""
