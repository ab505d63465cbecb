"""The networks, written once as functions of (ops, parameters, batch)."""
