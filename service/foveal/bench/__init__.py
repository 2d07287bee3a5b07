"""Measurements and simulations that `foveal bench` runs. The service does not need them."""
