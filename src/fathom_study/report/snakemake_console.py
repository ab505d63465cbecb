"""Console output of Snakemake: the plan as a table with reasons, then a line for each job.

Its full output is in the log that it names at the end; --printshellcmds or --verbose show it.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.jobs import GroupJob, Job
from snakemake.logging import DefaultFormatter, get_event, logger, show_logs
from snakemake_interface_logger_plugins.common import LogEvent

from fathom_study.config import Cell
from fathom_study.runs.validate import summarize_reasons

REASONS = {
    "forced": "forced",
    "missing_output": "not made yet",
    "params_changed": "code or settings changed",
    "input_changed": "set of inputs changed",
    "updated_input": "an input is newer",
    "updated_input_run": "an input is made again",
}
"""Reasons in words, by Snakemake's names. Of several reasons for a job the first is shown."""

SHOWN = {None, LogEvent.JOB_INFO, LogEvent.RUN_INFO, LogEvent.JOB_ERROR, LogEvent.ERROR}
HIDDEN = re.compile(
    "Assuming unrestr|Building DAG|Using shell|Conda environments: ig|Select jobs|Reasons:"
    "|Some jobs were|Rules with prov|Config file .* is ext|This was a dry-run|DAG of jobs will"
    "|Updating checkpoint dep|The run involves checkpoint|Trying to restart|[0-9]+ jobs have"
)


def plan_table(jobs: Iterable[tuple[str, str, str]]) -> str:
    """A table of jobs, given as (kind, name, why): a line with the count per kind, and the total.

    A kind with one job has the job's name.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for kind, name, why in jobs:
        kinds.setdefault(kind, []).append((name, why))
    table = [("what", "jobs", "why")]
    for kind, of_kind in kinds.items():
        reasons = Counter(why for _, why in of_kind).most_common()
        words = ", ".join(f"{why} ({n})" if reasons[1:] else why for why, n in reasons)
        table.append((kind if of_kind[1:] else of_kind[0][0], str(len(of_kind)), words))
    table.append(("in all", str(sum(map(len, kinds.values()))), ""))
    width = max(len(what) for what, _, _ in table)
    return "".join(f"{what:{width}}  {n:>5}  {why}".rstrip() + "\n" for what, n, why in table)


def describe_job(rule: str, wildcards: Mapping[str, str]) -> str:
    """Name of a job, as in 'train depth-mlx/48L/mhc/torch/seed0'."""
    names = [Cell(**wildcards).path()] if "variant" in wildcards else wildcards.values()
    return " ".join([rule, *names])


def without_command(message: object) -> str:
    """An executor's message without its indented lines, which are a command of 40 cells."""
    return str(message).partition("\n    ")[0]


class Console(DefaultFormatter):
    """Formats Snakemake's records in few words; `filter` drops those that add nothing."""

    def __init__(
        self,
        workflow: Any,  # noqa: ANN401
        why_again: Callable[[Job], str],
        how_long: Callable[[list[Job]], str],
        where_results_are: Callable[[], str],
    ) -> None:
        """`why_again(job)`: why a run that is not current is trained again; empty for others.

        `how_long(jobs)`: lines on their time. `where_results_are()`: lines for the end.
        """
        super().__init__(workflow.output_settings.quiet, workflow.output_settings.show_failed_logs)
        self.workflow, self.why_again, self.how_long = workflow, why_again, how_long
        self.where_results_are = where_results_are
        self.names: dict[int, str] = {}
        self.said: set[str] = set()

    def jobs_to_run(self) -> list[Job]:
        """Jobs that run something, in order. Snakemake logs a job's reason only at its start."""
        dag = self.workflow.dag
        levels = dag.toposorted(set(dag.needrun_jobs()))
        return [job for level in levels for job in sorted(level, key=str) if not job.is_norun]

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a record. The same error may refuse all jobs: it is shown once."""
        event, message = get_event(record), record.msg
        if event == LogEvent.JOB_INFO:  # neither a target nor a retry
            is_first = record.jobid not in self.names
            return bool(record.output) and not self.workflow.dryrun and is_first
        if event == LogEvent.JOB_ERROR:
            if record.indent and all(Path(file).exists() for file in record.output):
                return False  # a finished cell of a shared job
            if record.aux or not record.rule_msg:
                return True  # it was submitted
            message = record.rule_msg
        elif event == LogEvent.ERROR and record.exception == "RuleException":
            return "CalledProcess" not in message  # the job's own error follows
        line = without_command(message)
        if event not in SHOWN or HIDDEN.match(line) or line in self.said:
            return False
        self.said.add(line)
        return True

    def format_run_info(self, msg: dict[str, Any]) -> str:
        """The plan as a table, why stale runs are trained again, and the time that it takes."""
        rows, stale, jobs = [], [], self.jobs_to_run()
        for job in jobs:
            name, wildcards = job.rule.name, job.wildcards_dict
            reason = self.workflow.dag.reason(job)
            why = next((w for key, w in REASONS.items() if getattr(reason, key)), "always runs")
            if judged := self.why_again(job):
                stale.append(judged)
                why = judged.partition(":")[0]
            kind = " ".join([name, *filter(None, [wildcards.get("study")])])
            kind = "figures of a study" if name.startswith("figures_") else kind
            rows.append((kind, describe_job(name, wildcards), why))
        again = f"fathom: {summarize_reasons(stale)}\n" if stale else ""
        time = f"{self.how_long(jobs)}\n"
        hint = "Nothing was run. Add --printshellcmds to see every job in full."
        return plan_table(rows) + again + time + (hint if self.workflow.dryrun else "")

    def format_job_info(self, msg: dict[str, Any]) -> str:
        """Number of jobs started, current number of all jobs, and the name of this one."""
        name = self.names[msg["jobid"]] = describe_job(msg["rule_name"], msg["wildcards"])
        # Early cut-off and replays change how many jobs are left.
        left = sum(job.jobid not in self.names for job in self.jobs_to_run())
        return f"[{len(self.names)}/{len(self.names) + left}] {name}"

    def format_job_error(self, msg: dict[str, Any]) -> str:
        """The name, the executor's message, and the job's log."""
        lines = [f"failed: {self.names.get(msg['jobid'], msg['rule_name'])}"]
        lines += [f"    {without_command(msg['rule_msg'])}"] if msg["rule_msg"] else []
        lines += [f"    {key}: {value}" for key, value in msg["aux"].items()]
        logs = [log for log in msg["log"] if Path(log).is_file() and Path(log).stat().st_size]
        return "\n".join([*lines, *(show_logs(logs) if self.show_failed_logs else logs)])

    def format(self, record: logging.LogRecord) -> str:
        """Text of a record; one line for an unknown target, and the results if all are there."""
        text = super().format(record)
        if record.msg == NOTHING_TO_BE_DONE_MSG:
            return f"{text}\n{self.where_results_are()}"
        missing = re.search(r"No rule to produce (.*?) \(if you use input functions", text)
        if not missing:
            is_error = get_event(record) is None and record.levelname == "ERROR"
            return without_command(text) if is_error else text
        rules = [rule.name for rule in self.workflow.rules]
        near = difflib.get_close_matches(missing[1], rules, n=1)
        end = f"did you mean {near[0]}?" if near else "`snakemake --list` shows the targets"
        return f"fathom: no study, target or file is named '{missing[1]}'; {end}"


def install(console: Console) -> None:
    """Replace Snakemake's own console with this one; handlers of plugins stay unchanged."""
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.setFormatter(console)
            handler.addFilter(console)


def log_group_errors() -> None:
    """Log why Slurm refuses a shared job: Snakemake drops the reason, and names each cell."""
    log = GroupJob.log_error

    def log_error(group: GroupJob, msg: str | None = None, **details: Any) -> None:  # noqa: ANN401
        logger.error(msg)
        if "external_jobid" in details:  # it was submitted
            log(group, msg, **details)

    GroupJob.log_error = log_error
