"""Metrics: the name, meaning, axis label and function of each; `steps`, `runs` and `scores`.

A step metric is a number of one training step, in a row of `metrics.jsonl`, or a profile: a number
for each place along an axis, such as the accuracy at each position, in `profiles.csv`. A run metric
is a number of a whole run, derived from its rows, in a column of `cells.csv` and (its mean over
seeds) of `summary.csv`. A score names the run metric by which results are judged.

This package has the metrics that all tasks share; a task declares its own in its file
(`fathom_study.tasks.step_metrics()` returns all). The check of rows, the tables, axis labels and
the tables in docs/definitions follow from these entries.
"""
