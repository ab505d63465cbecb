"""Claims about time, judged by steps that were timed in turns.

Definitions: docs/definitions.md, "Verdicts".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from fathom_study.analysis.claims.comparisons import Difference
from fathom_study.analysis.claims.estimator import TURNS, Case, Estimator
from fathom_study.analysis.claims.evidence import (
    CLOCK,
    Judgement,
    NotMeasured,
)
from fathom_study.analysis.estimate import LOG10, Estimate
from fathom_study.analysis.step_times import StepTime, StepTimes

PER_STEP = "seconds_per_step"
"""The run metric that is judged by timed steps."""


def judge_step_times(test: Estimator, times: StepTimes, platform: str) -> Judgement:
    """The judgement of a difference in time per step on a platform.

    The interval of a ratio is the widest that the ranges over turns allow: it excludes 1 if the
    slowest turn of one variant was faster than the fastest of the other. Raises NotMeasured for any
    other test of a time, and if a variant was not timed.
    """
    if not isinstance(test, Difference) or test.metric != PER_STEP or test.spread:
        raise NotMeasured(CLOCK)
    of = {
        (depth, variant): time
        for (study, depth, variant, where), time in times.items()
        if study in test.studies and where == platform and not math.isnan(time.seconds)
    }
    depths = test.depths or sorted({depth for depth, _ in of})
    if not depths or any(key not in of for key in itertools.product(depths, test.named_variants)):
        raise NotMeasured(CLOCK)
    return replace(test.combine([*_cases(test, depths, of)]), rests_on=TURNS)


def _cases(
    test: Difference, depths: list[int], of: dict[tuple[int, str], StepTime]
) -> Iterator[Case]:
    for depth, other in itertools.product(depths, test.than):
        one, two = of[depth, test.variant], of[depth, other]
        ends = (one.seconds / two.seconds, one.low / two.high, one.high / two.low)
        turns = min(one.turns, two.turns)
        ratio = Estimate(test.metric, *map(math.log10, ends), turns, LOG10)
        verdict = test.weigh(replace(ratio, n=max(turns, test.seeds)), test.band)
        margin = test.band.margin(ratio.mean)
        yield Case(ratio, verdict, margin, test.variant, depth, turns, against=other)
