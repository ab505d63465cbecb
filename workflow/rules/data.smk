# Data sets: fetched once and checked by their SHA-256.


# The data files are no outputs: Snakemake deletes outputs before a job, and a user may have put these
# there by hand. The code is no parameter: an edit of it must not fetch again.
rule fetch:
    output:
        data_sums("{dataset}"),
    log:
        f"{STORE}/logs/data-{{dataset}}.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        name=lambda w: w.dataset.replace("-", "_"),
        unavailable=str(datasets.folder_of("{dataset}", DATA) / datasets.UNAVAILABLE),
    shell:
        "fathom fetch {params.name:q} --record {params.unavailable:q} 2> {log:q}"


rule data:
    input:
        map(data_sums, DATASETS),
