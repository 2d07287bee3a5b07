"""`foveal bench serve`: an open-loop load generator, what it measures, and what may be said of the result."""
