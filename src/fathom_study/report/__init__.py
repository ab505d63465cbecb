"""Figures, reports, page and paper from CSV tables."""
