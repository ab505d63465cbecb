# CSVs → PNGs: one job for each study and backend, and one for each cell on request.

OVERVIEW = [f"{RESULTS}/figures/overview/{name}.png" for name in ("variance", "published")]
FIGURES = [file for name in STUDIES for file in study_figures(name)] + OVERVIEW

for name in STUDIES:

    rule:
        name:
            f"figures_{name}".replace("-", "_")
        input:
            steps=f"{RESULTS}/tables/steps.csv.gz",
            summary=f"{RESULTS}/tables/summary.csv",
        output:
            *[
                report(
                    f"{RESULTS}/figures/{name}/{{place}}/{figure}.png",
                    category=name,
                    subcategory="{place}",
                    caption=f"../report/{caption_of(figure)}.rst",
                    labels={
                        "figure": figure.replace("_", " "),
                        "place": "{place}",
                    },
                )
                for figure in figure_names(name)
            ],
        log:
            f"{RESULTS}/logs/figures/{name}-{{place}}.log",
        localrule: True
        conda:
            "../../envs/report.yaml"
        params:
            study=name,
            code_hash=provenance.code_hash("fathom.figures", "fathom.mixing"),
            folder=subpath(output[0], parent=True),
            place=lambda w: place_options(w.place),
        shell:
            "fathom figures --steps {input.steps:q} --summary {input.summary:q}"
            " --study {params.study} {params.place} --out {params.folder:q} 2> {log:q}"


rule overview_figures:
    input:
        variance=f"{RESULTS}/tables/variance.csv",
        published=f"{RESULTS}/tables/published.csv",
    output:
        *[
            report(file, category="Overview", caption=f"../report/{Path(file).stem}.rst")
            for file in OVERVIEW
        ],
    log:
        f"{RESULTS}/logs/figures/overview.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.figures"),
        folder=subpath(output[0], parent=True),
    shell:
        "fathom overview-figures --variance {input.variance:q} --published {input.published:q}"
        " --out {params.folder:q} 2> {log:q}"


rule cell_figure:
    input:
        metrics=f"{RUN}/metrics.jsonl",
    output:
        expand(
            f"{RESULTS}/figures/cells/{{{{study}}}}/{{{{depth}}}}L/{{{{variant}}}}/"
            "{{backend}}/seed{{seed}}/{figure}.png",
            figure=CELL_FIGURES,
        ),
    log:
        f"{RESULTS}/logs/figures/{{study}}/{{depth}}L-{{variant}}-{{backend}}-seed{{seed}}.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.figures"),
        run=subpath(input.metrics, parent=True),
        folder=subpath(output[0], parent=True),
    shell:
        "fathom cell-figures {params.run:q} --out {params.folder:q} 2> {log:q}"


rule figures:
    input:
        FIGURES,
    localrule: True


rule cell_figures:
    input:
        [
            f"{RESULTS}/figures/cells/{cell.path()}/{figure}.png"
            for cell in CELLS
            for figure in CELL_FIGURES
        ],
    localrule: True
