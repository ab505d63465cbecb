"""Residual schemes: how a network's streams feed a layer and take its output back.

Every scheme is a row of settings. Most are composed of ingredients under one equation,

    x ← H_res x + H_postᵀ f(H_pre x),        x of shape [S, …, C],

where f is whatever the network wraps: a block, or one part of it. `schemes` holds the rows that
have a name, `ingredients` what they are made of; `streams`, `causal` and `plain` are the three
kinds of row. Formulas: docs/definitions.md, "Connections".
"""
