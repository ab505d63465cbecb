# CSVs and figures → reports, page and paper.
#
# Each template NAME.SUFFIX.j2 makes a report, and studies/STUDY.SUFFIX.j2 one for each study.


rule reports:
    input:
        TABLES,
        TIMES,
        STEP_TIMES,
        figures_wanted,
        KEPT,
        REFUSED,
        BOARD,
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
        command=lambda w: "report",  # lint takes a constant for a prefix of input.templates
        code_hash=hash_for(PLAN.code_hash, "fathom_study.report.pages.render"),
        templates=folder_of_templates,
    message:
        "reports"
    shell:
        "fathom {params.command:q} --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"


use rule reports as page with:
    input:
        REPORTS,
        figures_wanted,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        tables=[*TABLES, *TIMES],
        kept=KEPT,
        templates=files_in("report/page", "*.*"),
        words=WORDS,
        documents=[file for name in reports.DOCUMENTS for file in files_in("docs", name)],
    output:
        shown_in_report(f"{RESULTS}/index.html", labels={"report": "page"}),
    log:
        f"{RESULTS}/logs/page.log",
    params:
        command="page",
        code_hash=hash_for(PLAN.code_hash, "fathom_study.report.pages.page"),
        templates=folder_of_templates,
    message:
        "page"


use rule reports as paper with:
    input:
        TABLES,
        figures_wanted,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=files_in("report/paper", "*.typ*"),
        words=[*WORDS, *ANSWERS],
    output:
        shown_in_report(f"{RESULTS}/fathom.pdf", labels={"report": "paper"}),
    log:
        f"{RESULTS}/logs/paper.log",
    params:
        command="paper",
        code_hash=hash_for(PLAN.code_hash, "fathom_study.report.pages.paper"),
        templates=folder_of_templates,
    message:
        "paper"


rule report:
    input:
        REPORTS,
    message:
        "report"


# One target per study.
for name in PLAN.studies:

    rule:
        name:
            name
        input:
            PLAN.run_files(cell for cell in PLAN.cells if cell.study == name),
            functools.partial(report_of, name),
        message:
            name


# Checks files and makes none, so it runs whenever it is requested.
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
        config=OPTIONS,
        templates=folder_of_templates,
    message:
        "verify"
    shell:
        "fathom verify {params.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2>&1 | tee {log:q}"
