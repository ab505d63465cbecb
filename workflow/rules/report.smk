# CSVs and figures → RESULTS.md and COMPARISON.md.

REPORT_NAMES = ("RESULTS", "COMPARISON")
REPORTS = [f"{RESULTS}/{name}.md" for name in REPORT_NAMES]
TEMPLATES = sorted(map(str, Path("report/templates").glob("*.j2")))


rule reports:
    input:
        TABLES,
        FIGURES,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=TEMPLATES,
        judging_words="report/judging_words.txt",
    output:
        *[
            report(file, category="Reports", caption=f"../report/{name}.rst")
            for file, name in zip(REPORTS, REPORT_NAMES)
        ],
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.report"),
        templates=lambda w, input: str(Path(input.templates[0]).parent),
    shell:
        "fathom report --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"


rule report:
    input:
        REPORTS,
    localrule: True


# Checks whatever is there, and makes nothing: so it runs every time it is asked for.
rule verify:
    input:
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=TEMPLATES,
    log:
        f"{RESULTS}/logs/verify.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        templates=lambda w, input: str(Path(input.templates[0]).parent),
    shell:
        "fathom verify --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2>&1 | tee {log:q}"


rule schema:
    output:
        "workflow/schemas/config.schema.json",
    log:
        f"{RESULTS}/logs/schema.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.study"),
    shell:
        "fathom schema --out {output:q} 2> {log:q}"
