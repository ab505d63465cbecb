# CSVs and figures → a report for each template NAME.SUFFIX.j2, and of studies/STUDY.SUFFIX.j2 one for
# each study.

from fathom.report.reports import VERDICTS_AND_TESTS, reports_of

TEMPLATES_FOLDER = in_project("report/templates")
TEMPLATES = sorted(map(str, Path(TEMPLATES_FOLDER).rglob("*.j2")))
REPORTS = [f"{RESULTS}/{report.name}" for report in reports_of(CONFIG, Path(TEMPLATES_FOLDER))]

# The kept result, where there is one: reports show its verdicts beside those made here.
REFERENCE = Path(CONFIG.reference or "") / "tables"
KEPT = [str(file) for name in VERDICTS_AND_TESTS if (file := REFERENCE / f"{name}.csv").is_file()]


rule reports:
    input:
        TABLES,
        FIGURES,
        replayed_figures,
        KEPT,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=TEMPLATES,
    output:
        REPORTS,
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=provenance.code_hash("fathom.report.render", "fathom.measures:RUN_MEASURES[*]"),
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
        published=PUBLISHED,
        templates=TEMPLATES,
    log:
        f"{RESULTS}/logs/verify.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        config=[word for file in CONFIG_FILES for word in ("--config", file)],
        changes=[f"--set={key}={json.dumps(value)}" for key, value in CONFIG_CHANGES.items()],
        templates=lambda w, input: str(Path(input.templates[0]).parent),
    shell:
        "fathom verify {params.config:q} {params.changes:q} --published {input.published:q}"
        " --templates {params.templates:q} 2>&1 | tee {log:q}"
