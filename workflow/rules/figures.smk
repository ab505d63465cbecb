# CSVs → PNGs and SVGs: one job for each study and platform, and one for each cell on request.
#
# The declarations in src/fathom_study/report/figures define the figures of each study.

# A rule for each job: figures differ, and outputs cannot depend on a wildcard. Snakemake itself has a
# global `platform`.
for (name, at), figures in FIGURES.items():

    rule:
        name:
            f"figures_{name}_{at}".replace("-", "_")
        input:
            config=f"{RESULTS}/config.json",
            tables=tables_of(figures, Path(f"{RESULTS}/tables/studies/{name}")),
        output:
            in_report(
                f"{RESULTS}/figures/{name}/{at}",
                figures,
                category=name,
                study=name,
                platform=at.name,
            ),
        log:
            f"{RESULTS}/logs/figures/{name}-{at}.log",
        localrule: True
        conda:
            "../../envs/report.yaml"
        params:
            study=name,
            platform=at.name,
            only=[f"--only={f.name}" for f in figures],
            captions={f.label: f.caption for f in figures},
            code_hash=hash_for(PLAN.code_hash, *drawing_modules(figures)),
            tables=lambda w, input: str(Path(input.tables[0]).parents[2]),
            folder=subpath(output[0], parent=True),
        message:
            f"figures_{name.replace('-', '_')} {at}"
        shell:
            "fathom figures --config {input.config:q} --study {params.study:q}"
            " --platform {params.platform:q} --tables {params.tables:q} --out {params.folder:q}"
            " {params.only:q} 2> {log:q}"


rule overview_figures:
    input:
        config=f"{RESULTS}/config.json",
        tables=[f"{RESULTS}/tables/{name}" for name in OVERVIEW_TABLES],
    output:
        in_report(f"{RESULTS}/figures/overview", OVERVIEW, category="Overview"),
    log:
        f"{RESULTS}/logs/figures/overview.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        captions={f.label: f.caption for f in OVERVIEW},
        code_hash=hash_for(PLAN.code_hash, *drawing_modules(OVERVIEW)),
        tables=lambda w, input: str(Path(input.tables[0]).parent),
        folder=subpath(output[0], parent=True),
    message:
        "overview_figures"
    shell:
        "fathom figures --config {input.config:q} --tables {params.tables:q}"
        " --out {params.folder:q} 2> {log:q}"


rule cell_figure:
    input:
        metrics=f"{RUN}/metrics.jsonl",
    output:
        figure_files(f"{STORE}/figures/cells/{CELL}", CELL_FIGURES),
    log:
        f"{STORE}/logs/figures/{CELL_LOG}.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=hash_for(PLAN.code_hash, *drawing_modules(CELL_FIGURES)),
        run=subpath(input.metrics, parent=True),
        folder=subpath(output[0], parent=True),
    message:
        f"cell_figure {CELL_NAME}"
    shell:
        "fathom cell-figures {params.run:q} --out {params.folder:q} 2> {log:q}"


rule figures:
    input:
        figures_wanted,
    message:
        "figures"


rule cell_figures:
    input:
        [
            file
            for cell in PLAN.cells
            for file in figure_files(f"{STORE}/figures/cells/{cell.path()}", CELL_FIGURES)
        ],
    message:
        "cell_figures"
