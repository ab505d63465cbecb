"""A reproducible paper on the trainability of very deep networks with multi-stream connections."""

__version__ = "0.1.0"
