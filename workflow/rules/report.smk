# CSVs and figures → reports, page and paper.
#
# Each template NAME.SUFFIX.j2 makes a report, and studies/STUDY.SUFFIX.j2 one for each study.

from fathom.report.reports import ANSWERS, DOCUMENTS, VERDICTS_AND_TESTS, reports_of

folder_of_templates = lambda w, input: str(Path(input.templates[0]).parent)
shown_in_report = functools.partial(report, category="Reports", caption="../report/report.rst")
TEMPLATES, WORDS = (files_in("report/templates", name) for name in ("*.j2", "words.j2"))
REPORTS = [f"{RESULTS}/{report.name}" for report in reports_of(CONFIG, Path(TEMPLATES[0]).parent)]
PAGE, PAPER = [f"{RESULTS}/index.html"], [f"{RESULTS}/fathom.pdf"]
for package, files in (("markdown_it", PAGE), ("vl_convert", PAGE), ("typst", PAPER)):
    if files and not CONDA and importlib.util.find_spec(package) is None:
        warn(
            f"{package} is not installed here: {files.pop()} is left out "
            "(pip install -e '.[workflow]' brings it)"
        )

# The kept result, where there is one: reports show its verdicts beside those made here.
REFERENCE = Path(CONFIG.reference or "") / "tables"
KEPT_TABLES = (*VERDICTS_AND_TESTS, ANSWERS)
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
        command=lambda w: "report",  # a constant would pass for the folder of the templates
        code_hash=code_hash("fathom.report.render", *METRICS_CODE),
        templates=folder_of_templates,
    shell:
        "fathom {params.command} --config {input.config:q} --published {input.published:q}"
        " --templates {params.templates:q} 2> {log:q}"


use rule reports as page with:
    input:
        REPORTS,
        FIGURES,
        replayed_figures,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        tables=[*TABLES, *TIMES],
        kept=KEPT,
        templates=files_in("report/page", "*.*"),
        words=WORDS,
        documents=[file for name in DOCUMENTS for file in files_in("docs", name)],
    output:
        shown_in_report(f"{RESULTS}/index.html", labels={"report": "page"}),
    log:
        f"{RESULTS}/logs/page.log",
    params:
        command="page",
        code_hash=code_hash("fathom.report.page", *METRICS_CODE),
        templates=folder_of_templates,


use rule reports as paper with:
    input:
        TABLES,
        FIGURES,
        replayed_figures,
        config=f"{RESULTS}/config.json",
        published=PUBLISHED,
        templates=files_in("report/paper", "*.typ*"),
        words=WORDS,
    output:
        shown_in_report(f"{RESULTS}/fathom.pdf", labels={"report": "paper"}),
    log:
        f"{RESULTS}/logs/paper.log",
    params:
        command="paper",
        code_hash=code_hash("fathom.report.paper", *METRICS_CODE),
        templates=folder_of_templates,


rule report:
    input:
        REPORTS,


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
        templates=folder_of_templates,
    shell:
        "fathom verify {params.config:q} {params.changes:q} --published {input.published:q}"
        " --templates {params.templates:q} 2>&1 | tee {log:q}"
