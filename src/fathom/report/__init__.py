"""CSVs → figures and Markdown."""
