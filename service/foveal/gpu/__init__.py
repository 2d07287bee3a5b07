"""The worker program, `python -m foveal.gpu`: the only folder that runs the model. Knows no HTTP and no queue."""
