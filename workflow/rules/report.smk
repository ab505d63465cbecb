# CSVs and figures → reports, page and paper.
#
# Each template NAME.SUFFIX.j2 makes a report, and studies/STUDY.SUFFIX.j2 one for each study.

from fathom.report.reports import ANSWERS, DOCUMENTS, VERDICTS_AND_TESTS, reports_of

TEMPLATES = files_in("report/templates", "*.j2")
REPORTS = [f"{RESULTS}/{report.name}" for report in reports_of(CONFIG, Path(TEMPLATES[0]).parent)]
PAGE = optional(f"{RESULTS}/index.html", "markdown_it", "vl_convert")
PAPER = optional(f"{RESULTS}/fathom.pdf", "typst")

# The kept result, where there is one: reports show its verdicts beside those made here.
REFERENCE = Path(CONFIG.reference or "") / "tables"
KEPT_TABLES = (*VERDICTS_AND_TESTS, ANSWERS, "worth")
KEPT = [str(file) for name in KEPT_TABLES if (file := REFERENCE / f"{name}.csv").is_file()]


rule reports:
    input:
        TABLES,
        TIMES,
        STEP_TIMES,
        FIGURES,
        replayed_figures,
        KEPT,
        REFUSED,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=TEMPLATES,
    output:
        REPORTS,
        csvs(ANSWERS),
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        code_hash=code_hash("fathom.report.render", *METRICS_CODE),
        templates=lambda w, input: str(Path(input.templates[0]).parent),
    shell:
        "fathom report --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"


rule report:
    input:
        REPORTS,
    localrule: True


rule page:
    input:
        REPORTS,
        FIGURES,
        replayed_figures,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        tables=[*TABLES, *TIMES],
        kept=KEPT,
        templates=files_in("report/page", "*.*"),
        words=files_in("report/templates", "words.j2"),
        documents=[file for name in DOCUMENTS for file in files_in("docs", name)],
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
        code_hash=code_hash("fathom.report.page", *METRICS_CODE),
        templates=lambda w, input: str(Path(input.templates[0]).parent),
    shell:
        "fathom page --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"


rule paper:
    input:
        TABLES,
        FIGURES,
        replayed_figures,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=files_in("report/paper", "*.typ*"),
        words=files_in("report/templates", "words.j2"),
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
        code_hash=code_hash("fathom.report.paper", *METRICS_CODE),
        templates=lambda w, input: str(Path(input.templates[0]).parent),
    shell:
        "fathom paper --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"


# Checks what is there and makes nothing, so it runs whenever it is asked for.
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
