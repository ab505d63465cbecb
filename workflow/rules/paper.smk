# CSVs and figures → the paper.

import importlib.util

PAPER_FOLDER = in_project("report/paper")
PAPER_FILES = sorted(map(str, Path(PAPER_FOLDER).glob("*.typ*")))

# Where there is no typst the rest is made all the same.
HAS_TYPST = CONDA or importlib.util.find_spec("typst") is not None
PAPER = [f"{RESULTS}/fathom.pdf"] if HAS_TYPST else []
if not HAS_TYPST:
    print(
        f"fathom: typst is not installed here: {RESULTS}/fathom.pdf is left out "
        "(pip install -e '.[workflow]' brings it)",
        file=sys.stderr,
    )


rule paper:
    input:
        TABLES,
        FIGURES,
        replayed_figures,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=PAPER_FILES,
    output:
        report(
            f"{RESULTS}/fathom.pdf",
            category="Reports",
            caption="../report/report.rst",
            labels={"report": "paper"},
        ),
    log:
        f"{RESULTS}/logs/paper.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.report.paper", "fathom.measures:RUN_MEASURES[*]"),
        templates=lambda wildcards, input: Path(input.templates[0]).parent,
    shell:
        "fathom paper --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"
