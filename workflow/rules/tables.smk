# Config → config.json, which tables and reports read. Runs → CSVs.


# The content decides, even of a file from git: Snakemake needs no record of it.
rule resolve:
    input:
        ancient(STARTED) if or_exit(is_resolved, CONFIG) else STARTED,
    output:
        config=f"{RESULTS}/config.json",
    log:
        f"{RESULTS}/logs/resolve.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        config=or_exit(write_resolved, CONFIG),
    message:
        "resolve"
    shell:
        "{{ cp {params.config:q} {output.config:q}.new"
        " && mv {output.config:q}.new {output.config:q}; }} 2> {log:q}"


# Checkpoints, since Snakemake plans again after one: an unchanged table causes no further job.
checkpoint run_tables:
    input:
        config=f"{RESULTS}/config.json",
        # Snakemake hashes all inputs again for every output: a manifest stands for four files.
        runs=lambda w: PLAN.manifest_files(wanted()[0]),
        refused=REFUSED,
        step_times=STEP_TIMES,
    output:
        RUN_TABLES,
        TIMES,
        STEPS,
        [f"{folder}/{name}" for folder in STUDIES for name in BY_STUDY],
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        imported=PLAN.imported_key,  # their files and replays, for the same reason
        code_hash=hash_for(PLAN.code_hash, "fathom_study.analysis.run_tables"),
    message:
        "run_tables"
    shell:
        "fathom tables --config {input.config:q} 2> {log:q}"


checkpoint claims:
    input:
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        cells=f"{RESULTS}/tables/cells.csv",
        summary=f"{RESULTS}/tables/summary.csv",
        times=TIMES,
        step_times=STEP_TIMES,
        steps=STEPS,
    output:
        VERDICTS,
    log:
        f"{RESULTS}/logs/claims.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=hash_for(code_hash, "fathom_study.analysis.claims"),
    message:
        "claims"
    shell:
        "fathom claims --config {input.config:q} --published {input.published:q} 2> {log:q}"


rule tables:
    input:
        rules.run_tables.output,
        rules.claims.output,
    message:
        "tables"
