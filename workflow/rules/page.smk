# Reports, figures and tables → the page.

PAGE_FOLDER = in_project("report/page")
PAGE_FILES = sorted(map(str, Path(PAGE_FOLDER).glob("*.*")))

# Where a package of it is lacking the rest is made all the same.
LACKING = [
    package
    for package in ("markdown_it", "plotly")
    if not CONDA and importlib.util.find_spec(package) is None
]
PAGE = [] if LACKING else [f"{RESULTS}/index.html"]
if LACKING:
    print(
        f"fathom: {LACKING[0]} is not installed here: {RESULTS}/index.html is left out "
        "(pip install -e '.[workflow]' brings it)",
        file=sys.stderr,
    )


rule page:
    input:
        REPORTS,
        FIGURES,
        replayed_figures,
        config=f"{RESULTS}/config.json",
        steps=f"{RESULTS}/tables/steps.csv.gz",
        summary=f"{RESULTS}/tables/summary.csv",
        templates=PAGE_FILES,
    output:
        report(
            f"{RESULTS}/index.html",
            category="Reports",
            caption="../report/report.rst",
            labels={"report": "page"},
        ),
    log:
        f"{RESULTS}/logs/page.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.report.page", "fathom.measures:STEP_MEASURES[*]"),
        templates=lambda wildcards, input: Path(input.templates[0]).parent,
    shell:
        "fathom page --config {input.config:q} --templates {params.templates:q} 2> {log:q}"
