"""Rows of tables in words: numbers, intervals and phrases of reports."""
