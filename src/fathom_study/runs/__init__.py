"""Run folders: train cells, validate and replay runs, and carry them in bundles."""
