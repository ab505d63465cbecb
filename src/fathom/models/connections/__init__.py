"""Residual connections: how a layer reads a network's streams and writes its output to them.

A connection is a set of settings. Most are composed of components under one equation,

    x ← H_res x + H_postᵀ f(H_pre x),        x of shape [S, …, C],

where f is whatever the network wraps: a block, or a part of one. `schemes` has the named presets,
`components` and `constraints` what they are composed of; `streams`, `causal` and `plain` are the
three kinds of connection. Formulas: docs/definitions.md, "Connections".
"""
