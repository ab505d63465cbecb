"""From runs to tables and verdicts; nothing here writes text for readers.

| what tables share | function |
|---|---|
| two variants at a study, platform and depth | `pairs.pairs_of` |
| two platforms of a cell | `tables.platform_pairs` |
| a mean with its 95 % interval | `statistics.t_interval`, `mean_with_ci` |
| the change from one side to the other, with its interval | `pair_verdicts.compare` |
| a step multiplier | `ladder.log_multipliers` |
| p, Holm's correction, a verdict | `significance.moderate`, `correct`, `score_verdict` |
"""
