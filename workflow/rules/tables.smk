# Runs → CSVs. The config goes into a file, so that tables and reports know every cell.

RUN_TABLES = ("cells", "summary", "comparison", "platforms")
ATTRIBUTION = ("trajectories", "variance", "variance_summary")
EFFECTS = ("effects",)
VERDICTS = ("published", "thresholds", "claims", "verdicts")

TABLES = [
    f"{RESULTS}/tables/{name}.csv" for name in (*RUN_TABLES, *ATTRIBUTION, *EFFECTS, *VERDICTS)
]
TABLES += [f"{RESULTS}/tables/steps.csv.gz"]

PUBLISHED = in_project("report/published.yaml")

# A job gets it on its command line, of which Linux takes 128 KiB.
CONFIG_JSON = json.dumps(CONFIG.resolved())
if len(shlex.quote(CONFIG_JSON).encode()) > 100_000:
    fail("the config is too long for a command line: write fewer values, or shorter ones")


rule resolve:
    output:
        config=f"{RESULTS}/config.json",
    log:
        f"{RESULTS}/logs/resolve.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        config=lambda w: CONFIG_JSON,  # of a text, Snakemake would read braces as wildcards
        code_hash=provenance.code_hash("fathom.config"),
    shell:
        "fathom resolve {params.config:q} --out {output.config:q} 2> {log:q}"


rule run_tables:
    input:
        config=f"{RESULTS}/config.json",
        runs=[file for cell in CELLS for file in run_files(cell)],
        imported=files_of_imported(CARRIED),
        replays=RECEIPTS,
    output:
        [f"{RESULTS}/tables/{name}.csv" for name in (*RUN_TABLES, *ATTRIBUTION, *EFFECTS)],
        f"{RESULTS}/tables/steps.csv.gz",
    log:
        f"{RESULTS}/logs/tables.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash(
            "fathom.analysis.tables",
            "fathom.analysis.attribution",
            "fathom.analysis.effects",
            "fathom.measures:RUN_MEASURES[*]",
        ),
    shell:
        "fathom tables --config {input.config:q} 2> {log:q}"


rule claims:
    input:
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        cells=f"{RESULTS}/tables/cells.csv",
        summary=f"{RESULTS}/tables/summary.csv",
        steps=f"{RESULTS}/tables/steps.csv.gz",
    output:
        [f"{RESULTS}/tables/{name}.csv" for name in VERDICTS],
    log:
        f"{RESULTS}/logs/claims.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.analysis.claims", "fathom.analysis.claims.rules"),
    shell:
        "fathom claims --config {input.config:q} --published {input.published:q} 2> {log:q}"


rule tables:
    input:
        TABLES,
    localrule: True
