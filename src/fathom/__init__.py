"""A reproducible paper: do multi-stream residual connections keep very deep networks trainable."""

__version__ = "0.1.0"
