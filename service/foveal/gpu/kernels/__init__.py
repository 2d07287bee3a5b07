"""Triton kernels for the parts of a tower that PyTorch runs as many small launches. CUDA only; imported on demand."""
