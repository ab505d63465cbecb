"""`fathom verify`, and the hashes of a kept result."""
