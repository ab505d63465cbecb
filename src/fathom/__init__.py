"""The library: residual connections as modules for PyTorch and MLX."""

__version__ = "0.1.0"
