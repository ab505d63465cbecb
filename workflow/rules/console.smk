# What Snakemake shows: which jobs run and why, in a table, and then one line for each job.
#
# Its own words are longer than a screen: every job with all its files. They are in the log file that
# it names at the end, and on the screen with --printshellcmds (-p) or --verbose.

import difflib
import re
from collections import Counter

from snakemake.logging import DefaultFormatter, get_event, logger, show_logs
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

NOT_SHOWN = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
    LogEvent.PROGRESS,
    LogEvent.SHELLCMD,
}

# Of the messages that are no event.
NOT_SAID = re.compile(
    "Assuming unrestricted|Building DAG|Using shell|Conda environments: ignored|Select jobs"
    "|Reasons:|Some jobs were triggered|Rules with provenance|Config file .* is extended|This was a dry-run"
    "|DAG of jobs will be updated|Updating checkpoint dependencies|The run involves checkpoint jobs"
)

MISSING = re.compile(r"No rule to produce (.*?) \(if you use input functions")


def shown(rule_name, wildcards):
    """A job in one line, as in 'train depth-mlx/48L/mhc/torch/seed0'."""
    is_of_cell = set(wildcards) == {"study", "depth", "variant", "backend", "seed"}
    names = [Cell(**wildcards).path()] if is_of_cell else map(str, wildcards.values())
    return " ".join([rule_name, *names])


def reason_of(job):
    """Why the job runs, in a few words."""
    reason = workflow.dag.reason(job)
    names = set(reason.get_names())
    words = next((words for name, words in REASONS.items() if name in names), "always runs")
    return words.format(what_changed(job, reason.params_changed))


def what_changed(job, change):
    """Which of a rule's parameters are not those of the last time."""
    now = " ".join(map(str, getattr(change, "only_new", ())))
    if str(job.params.get("code_hash")) not in now:
        return "settings"
    rest = [v for k, v in job.params.items() if k != "code_hash" and str(v) in now]
    return "code and settings" if rest else "code"


def plan(jobs):
    """A table: what runs, how many jobs it is, and why."""
    rows = {}
    for level in workflow.dag.toposorted(set(jobs)):
        for job in sorted(level, key=str):
            if not job.is_norun:
                several = kind_of(job)
                rows.setdefault(several, []).append(job)
    table = [("what", "jobs", "why")]
    for several, found in rows.items():
        one = found[0]
        name = several if found[1:] else shown(one.rule.name, one.wildcards_dict)
        reasons = Counter(map(reason_of, found)).most_common()
        why = [f"{words} ({n})" if reasons[1:] else words for words, n in reasons]
        table.append((name, str(len(found)), ", ".join(why)))
    table.append(("in all", str(sum(map(len, rows.values()))), ""))
    width = max(len(name) for name, _, _ in table)
    return "\n".join(f"{name:{width}}  {n:>5}  {why}".rstrip() for name, n, why in table) + "\n"


def kind_of(job):
    """What the jobs of a line have in common: their rule, and the study if it has one."""
    if job.rule.name.startswith("figures_"):  # a rule for every study
        return "figures of a study"
    return " ".join([job.rule.name, *filter(None, [job.wildcards_dict.get("study")])])


class Console(DefaultFormatter):
    """Snakemake's records in few words; `filter` leaves out those that add nothing to them."""

    def __init__(self, settings):
        super().__init__(settings.quiet, settings.show_failed_logs)
        self.started, self.total, self.names = 0, 0, {}

    def filter(self, record):
        event = get_event(record)
        if event is None:
            return not NOT_SAID.match(str(record.msg))
        if event == LogEvent.JOB_INFO:
            return bool(record.shellcmd) and not workflow.dryrun
        if event == LogEvent.RUN_INFO:
            return not self.total  # a dry-run has it twice
        if event == LogEvent.ERROR:  # the exception of a job: its own error follows
            return not (record.exception == "RuleException" and "CalledProcess" in record.msg)
        return event not in NOT_SHOWN

    def format_run_info(self, msg):
        jobs = list(workflow.dag.needrun_jobs())
        self.total = sum(not job.is_norun for job in jobs)
        hint = "Nothing was run. Add --printshellcmds to see every job in full."
        return plan(jobs) + (hint if workflow.dryrun else "")

    def format_job_info(self, msg):
        self.started += 1
        name = shown(msg["rule_name"], msg["wildcards"])
        self.names[msg["jobid"]] = name
        if REPLAYS:  # which may bring more jobs
            jobs = (job for job in workflow.dag.needrun_jobs() if not job.is_norun)
            self.total = self.started + sum(job.jobid not in self.names for job in jobs)
        return f"[{self.started}/{self.total}] {name}"

    def format_job_error(self, msg):
        lines = [f"failed: {self.names.get(msg['jobid'], msg['rule_name'])}"]
        lines += [f"    {key}: {value}" for key, value in msg["aux"].items()]
        lines += [f"    {msg['shellcmd'].strip()}"] if msg["shellcmd"] else []
        lines += show_logs(msg["log"]) if self.show_failed_logs else msg["log"]
        return "\n".join(lines)

    def format(self, record):
        missing = get_event(record) == LogEvent.ERROR and MISSING.search(record.msg)
        if not missing:
            return super().format(record)
        near = difflib.get_close_matches(missing[1], [rule.name for rule in workflow.rules], n=1)
        end = f"did you mean {near[0]}?" if near else "`snakemake --list` shows the targets"
        return f"fathom: there is no study, target or file '{missing[1]}'; {end}"


settings = workflow.output_settings
in_full = settings.printshellcmds or settings.verbose or not workflow.is_main_process

# A handler of another kind, as a plugin brings, is left as it is.
for handler in logger.handlers:
    if handler.name == "DefaultStreamHandler" and not in_full:
        console = Console(settings)
        handler.setFormatter(console)
        handler.addFilter(console)
