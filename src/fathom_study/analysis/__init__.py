"""Runs → CSVs: tables, attribution, claims."""
