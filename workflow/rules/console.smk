# What Snakemake shows: a table of which jobs run and why, then a line for each job.
#
# Its own output lists every job with all its files: see the log file that it names at the end, or add
# --printshellcmds (-p) or --verbose.

import difflib
import re
from collections import Counter

from snakemake.logging import DefaultFormatter, get_event, show_logs
from snakemake_interface_logger_plugins.common import LogEvent

# Snakemake's names of reasons, the strongest first: a job that was never made has others as well.
REASONS = {
    "forced": "forced",
    "output files have to be generated": "not made yet",
    "incomplete output files": "was interrupted",
    "params have changed since last execution": "{} changed",
    "set of input files has changed since last execution": "set of inputs changed",
    "updated input files": "an input is newer",
    "input files updated by another job": "an input is made again",
}

HIDDEN_EVENTS = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
    LogEvent.PROGRESS,
    LogEvent.SHELLCMD,
    LogEvent.GROUP_INFO,
    LogEvent.GROUP_ERROR,  # an error of each of its jobs follows
}
HIDDEN_MESSAGES = re.compile(
    "Assuming unrestricted|Building DAG|Using shell|Conda environments: ignored|Select jobs"
    "|Reasons:|Some jobs were triggered|Rules with provenance|Config file .* is extended|This was a dry-run"
    "|DAG of jobs will be updated|Updating checkpoint dependencies|The run involves checkpoint jobs"
    "|Trying to restart job"
)
MISSING = re.compile(r"No rule to produce (.*?) \(if you use input functions")


def describe_job(rule_name, wildcards):
    """A job in one line, as in 'train depth-mlx/48L/mhc/torch/seed0'."""
    is_of_cell = set(wildcards) == {"study", "depth", "variant", "backend", "seed"}
    names = [Cell(**wildcards).path()] if is_of_cell else map(str, wildcards.values())
    return " ".join([rule_name, *names])


def describe_reason(job):
    """Why a job runs, in a few words."""
    if is_training(job) and (why := why_again(job)):
        return why.partition(":")[0]
    names, changed = reason_of(job)
    words = next((words for name, words in REASONS.items() if name in names), "always runs")
    if str(job.params.get("code_hash")) not in changed:
        return words.format("settings")
    others = [v for k, v in job.params.items() if k != "code_hash" and str(v) in changed]
    return words.format("code and settings" if others else "code")


def kind_of(job):
    """What a line of the plan has in common: the rule, and the study if there is one."""
    if job.rule.name.startswith("figures_"):  # a rule for each study
        return "figures of a study"
    return " ".join([job.rule.name, *filter(None, [job.wildcards_dict.get("study")])])


def plan(jobs):
    """A table: what runs, how many jobs, and why."""
    kinds = {}
    for job in jobs:
        kinds.setdefault(kind_of(job), []).append(job)
    table = [("what", "jobs", "why")]
    for kind, (job, *more) in kinds.items():
        reasons = Counter(map(describe_reason, [job, *more])).most_common()
        why = [f"{words} ({n})" if reasons[1:] else words for words, n in reasons]
        name = kind if more else describe_job(job.rule.name, job.wildcards_dict)
        table.append((name, 1 + len(more), ", ".join(why)))
    table.append(("in all", len(jobs), ""))
    width = max(len(name) for name, _, _ in table)
    return "\n".join(f"{name:{width}}  {n:>5}  {why}".rstrip() for name, n, why in table) + "\n"


def without_command(message):
    """An executor's message, of which the indented lines are a command of 40 cells."""
    return str(message).partition("\n    ")[0]


class Console(DefaultFormatter):
    """Formats Snakemake's records in few words; `filter` drops those that add nothing."""

    def __init__(self, settings):
        super().__init__(settings.quiet, settings.show_failed_logs)
        self.names, self.said = {}, set()

    def filter(self, record):
        event = get_event(record)
        if event is None:
            if record.levelname == "ERROR":
                return self.is_new(without_command(record.msg))
            return not HIDDEN_MESSAGES.match(str(record.msg))
        if event == LogEvent.JOB_INFO:
            is_first = record.jobid not in self.names  # and not one of its retries
            return bool(record.output) and not workflow.dryrun and is_first  # a target has none
        if event == LogEvent.RUN_INFO:  # a dry-run has it twice
            return self.is_new(event)
        if event == LogEvent.JOB_ERROR and record.indent:  # some cells of a shared job are finished
            return not all(Path(file).exists() for file in record.output)
        if event == LogEvent.JOB_ERROR and record.rule_msg and not record.aux:  # was not submitted
            return self.is_new(without_command(record.rule_msg))
        if event == LogEvent.ERROR:  # the exception of a job: its own error follows
            return not (record.exception == "RuleException" and "CalledProcess" in record.msg)
        return event not in HIDDEN_EVENTS

    def format_run_info(self, msg):
        hint = "Nothing was run. Add --printshellcmds to see every job in full."
        return plan(jobs_to_run()) + (hint if workflow.dryrun else "")

    def format_job_info(self, msg):
        name = self.names[msg["jobid"]] = describe_job(msg["rule_name"], msg["wildcards"])
        # A replay may bring figures, and tables that hold what they held leave jobs out.
        left = sum(job.jobid not in self.names for job in jobs_to_run())
        return f"[{len(self.names)}/{len(self.names) + left}] {name}"

    def is_new(self, message):
        """Whether it is said for the first time: what refuses one job may refuse them all."""
        is_new = message not in self.said
        self.said.add(message)
        return is_new

    def format_job_error(self, msg):
        lines = [f"failed: {self.names.get(msg['jobid'], msg['rule_name'])}"]
        lines += [f"    {without_command(msg['rule_msg'])}"] if msg["rule_msg"] else []
        lines += [f"    {key}: {value}" for key, value in msg["aux"].items()]
        logs = [log for log in msg["log"] if Path(log).is_file() and Path(log).stat().st_size]
        lines += show_logs(logs) if self.show_failed_logs else logs
        return "\n".join(lines)

    def format(self, record):
        if get_event(record) is None and record.levelname == "ERROR":
            return without_command(record.msg)
        missing = get_event(record) == LogEvent.ERROR and MISSING.search(record.msg)
        if not missing:
            return super().format(record)
        near = difflib.get_close_matches(missing[1], [rule.name for rule in workflow.rules], n=1)
        end = f"did you mean {near[0]}?" if near else "`snakemake --list` shows the targets"
        return f"fathom: there is no study, target or file '{missing[1]}'; {end}"


# A handler of another kind, as a plugin brings, stays as it is.
for handler in logger.handlers:
    if handler.name == "DefaultStreamHandler" and not IN_FULL:
        console = Console(workflow.output_settings)
        handler.setFormatter(console)
        handler.addFilter(console)
