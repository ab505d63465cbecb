"""Files, text, errors, hardware and BLAS, for all other modules."""
