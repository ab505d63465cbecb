"""The published experiment as tutorials write it: a module per layer, a loop over everything.

The other side of `fathom bench`. It computes what fathom computes, in the plainest way: Sinkhorn in
every layer, streams mixed by S×S products between permutes, an optimiser that visits tensor after
tensor, and metrics that each wait for the device. Nothing else in the project uses it.
"""
