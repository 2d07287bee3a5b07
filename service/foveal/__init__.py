"""foveal: images in, vision-encoder embeddings out, as a service of its own."""

__version__ = "0.1.0"
