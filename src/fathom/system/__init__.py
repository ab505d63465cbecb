"""Files, hardware, BLAS, errors, progress: what every room may use."""
