"""Loops, kernels and gradients that connections compute with."""
