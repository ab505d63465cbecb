# What fathom reads from inside Snakemake 9, where there is no public way. If a new version breaks the
# workflow, look here first; rules/console.smk has the rest, formatting its records.

from snakemake.jobs import GroupJob
from snakemake.logging import logger

# Another workflow has this one as a module: the config comes from there, not from config.yaml.
IS_MODULE = workflow.modifier.skip_configfile

# The config as the user gave it. Snakemake's own `config` has merged it, with the keys of an overlay
# before those of config.yaml: studies would lose their order.
CONFIG_FILES = list(map(str, workflow.overwrite_configfiles))
CONFIG_CHANGES = workflow.config_settings.config
if not workflow.config_settings.replace_workflow_config:
    CONFIG_FILES.insert(0, "config.yaml")

# Every YAML file that Snakemake reads a config from, those of the workflow around a module included.
READ_STRICTLY = [*([] if IS_MODULE else ["config.yaml"]), *workflow.configfiles]

# Jobs in a conda environment have a Python of their own, and packages that are missing here.
CONDA = bool(workflow.deployment_settings.deployment_method)

# Other machines run the jobs, and may have frameworks that are missing here. Snakemake names its
# executor after it has read the rules; of profiles, a cluster's alone has default resources.
IS_REMOTE = workflow.remote_exec or workflow.resource_settings.default_resources is not None

# This process runs the jobs itself, so it can start what they fork from.
RUNS_JOBS = workflow.local_exec and not CONDA

# Snakemake's own output stays where it is asked for, and in jobs that are a Snakemake of their own.
IN_FULL = (
    workflow.output_settings.printshellcmds
    or workflow.output_settings.verbose
    or not workflow.is_main_process
)


def checkout():
    """(git repository, commit) that this file is fetched from; None if it is on this disk."""
    source = workflow.current_basedir
    if not hasattr(source, "ref"):
        return None
    from git import Repo

    repository = (
        source.hosted_repo.repo if hasattr(source, "hosted_repo") else Repo(source.repo_path)
    )
    return repository, repository.commit(source.ref).hexsha


def rules_folder():
    """The folder that this file is in, on this disk."""
    return workflow.current_basedir.get_path_or_uri(secret_free=True)


def jobs_to_run():
    """The jobs of the plan that do something, each after those that it needs."""
    levels = workflow.dag.toposorted(set(workflow.dag.needrun_jobs()))
    return [job for level in levels for job in sorted(level, key=str) if not job.is_norun]


def reason_of(job):
    """(Snakemake's names of why a job runs, the parameters that are new since its last run)."""
    reason = workflow.dag.reason(job)
    changed = getattr(reason.params_changed, "only_new", ())
    return set(reason.get_names()), " ".join(map(str, changed))


def judge_jobs(is_judged, why_again, tell):
    """Let a judgement of our own decide about jobs for which `is_judged(job)` holds.

    `why_again(job)` is why a job whose files are there runs again; if empty, it does not. What
    Snakemake has recorded of parameters, inputs and interruptions counts for nothing then. As ever it
    makes missing files, and what the user forces. `tell` gets the reasons of the plan, if there are any.
    Snakemake's setting `forcerun` would add targets.
    """
    prepare = workflow._prepare_dag

    def unless_judged(changes):
        return lambda job, file=None: () if is_judged(job) else changes(job, file)

    def prepare_and_judge(*arguments, **settings):
        prepare(*arguments, **settings)
        dag, records = workflow.dag, workflow.persistence
        check_incomplete = dag.check_incomplete
        for name in ("params_changed", "input_changed", "code_changed", "software_stack_changed"):
            setattr(records, name, unless_judged(getattr(records, name)))

        async def judge():
            forced = set(dag.forcefiles)
            await check_incomplete()
            reasons = []
            for job in filter(is_judged, dag.jobs):
                dag.forcefiles.difference_update(set(job.output) - forced)
                if why := why_again(job):
                    dag.forcefiles.update(job.output)
                    reasons.append(why)
            if reasons:
                tell(reasons)

        dag.check_incomplete = judge

    if workflow.is_main_process:
        workflow._prepare_dag = prepare_and_judge


def log_group_error(group, msg=None, *, log=GroupJob.log_error, **details):
    """Log the executor's message too, such as why Slurm refuses a job: Snakemake drops it.

    Of a job that was not submitted this is all.
    """
    logger.error(msg)
    if "external_jobid" in details:
        log(group, msg, **details)


GroupJob.log_error = log_group_error
