"""Residual connections: how a layer reads a network's streams and writes its output to them.

A connection is a set of settings. Most are composed of components under one equation,

    x ← H_res x + H_postᵀ f(H_pre x),        x of shape [S, …, C],

where f is a function that the network wraps: a block, or a part of one. `schemes` has the named
presets and all kinds of connection; `components` and `constraints` have the parts of the kind
`streams`. Formulas: docs/definitions/connections.md.
"""
