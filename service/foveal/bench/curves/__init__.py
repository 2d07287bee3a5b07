"""`foveal bench curves`: latency over rate of the whole service and of a plain server, and what was busiest."""
