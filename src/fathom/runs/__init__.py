"""Run folders: what a trained cell leaves, how far it can be trusted, how it is carried."""
