"""The study: trains networks with residual connections, and tests claims about them."""
