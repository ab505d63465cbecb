# Data sets: fetched once and checked by their SHA-256.


# The data files are not outputs: Snakemake deletes outputs before a job, and a user may have put
# them there by hand. The code is not a parameter: an edit of it must not fetch again.
rule fetch:
    output:
        touch(DATA_READY),
    log:
        f"{STORE}/logs/data-{{dataset}}.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        unavailable=lambda w, output: datasets.folder_of(w.dataset, DATA) / datasets.UNAVAILABLE,
    message:
        "fetch {wildcards.dataset}"
    shell:
        'fathom fetch {wildcards.dataset:q} --data "$FATHOM_DATA" --record {params.unavailable:q}'
        " 2> {log:q}"


rule data:
    input:
        [ancient(DATA_READY.format(dataset=name)) for name in PLAN.datasets],
    message:
        "data"
