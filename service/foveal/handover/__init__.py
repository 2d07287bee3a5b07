"""Embeddings on their way to an LLM server: promised, published, and put into its requests."""
