"""`foveal demo`: a server on this machine, real pictures through the SDK, and a picture of what came out."""
