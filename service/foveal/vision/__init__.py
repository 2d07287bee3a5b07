"""The prep process: encoded pictures in, uint8 patch rows out. Knows Pillow, NumPy and torch's resize; no HTTP."""
