# Config → config.json, which tables and reports read. Runs → CSVs.

RUN_TABLES = (
    "cells",
    "summary",
    "profiles",
    "comparison",
    "platforms",
    "effects",
    "effective_depth",
)
ATTRIBUTION = ("trajectories", "variance", "variance_summary")
VERDICTS = ("published", "thresholds", "claims", "verdicts")


STEPS = [file for study in STUDIES for file in tables_of_study(study, ["steps.csv.gz"])]
# What shows no time is not made again where only these have changed.
TIMES = csvs("times", "times_summary")
TABLES = [*csvs(*RUN_TABLES, *ATTRIBUTION, *VERDICTS), *STEPS]

PUBLISHED = in_project("report/published.yaml")
CONFIG_JSON = json.dumps(CONFIG.resolved(), indent=2, allow_nan=False) + "\n"
# Compressed: a command above 64 KB goes through a file, whose path Snakemake does not quote.
CONFIG_GZIP = base64.b64encode(gzip.compress(CONFIG_JSON.encode(), mtime=0)).decode()


rule resolve:
    output:
        config=f"{RESULTS}/config.json",
    log:
        f"{RESULTS}/logs/resolve.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        config=CONFIG_GZIP,
        code_hash=code_hash("fathom.config"),
    shell:
        "echo {params.config:q} | base64 -d | gzip -d > {output.config:q} 2> {log:q}"


# Checkpoints, since Snakemake looks again after one: where a table is as it was, nothing follows.
checkpoint run_tables:
    input:
        config=f"{RESULTS}/config.json",
        runs=[file for cell in CELLS for file in run_files(cell)],
        imported=imported_files(IMPORTED),
        replays=RECEIPTS,
        refused=REFUSED,
    output:
        csvs(*RUN_TABLES, *ATTRIBUTION),
        TIMES,
        [tables_of_study(study) for study in STUDIES],
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=code_hash(
            "fathom.analysis.run_tables",
            "fathom.analysis.attribution",
            "fathom.analysis.effects",
            "fathom.analysis.effective_depth",
            *METRICS_CODE,
        ),
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
        csvs(*VERDICTS),
    log:
        f"{RESULTS}/logs/claims.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=code_hash("fathom.analysis.claims"),
    shell:
        "fathom claims --config {input.config:q} --published {input.published:q} 2> {log:q}"


rule tables:
    input:
        TABLES,
        TIMES,
    localrule: True
