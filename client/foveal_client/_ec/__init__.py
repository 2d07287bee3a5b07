"""What `vllm_connector` is made of: fetching embeddings by key into shared memory. Knows no vLLM."""
