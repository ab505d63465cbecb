# Data sets: fetched once and checked by their SHA-256.

for name in DATASETS:

    # The data files are no outputs: Snakemake deletes outputs before a job, and a user may have put
    # these there by hand. The code is no parameter: an edit of it must not fetch again.
    rule:
        name:
            f"data_{name}"
        output:
            data_sums(name),
        log:
            f"{STORE}/logs/data-{name}.log",
        localrule: True
        conda:
            "../../envs/report.yaml"
        params:
            name=name,
            unavailable=str(data_folder(name) / datasets.UNAVAILABLE),
        shell:
            "fathom fetch {params.name:q} --record {params.unavailable:q} 2> {log:q}"


rule data:
    input:
        [data_sums(name) for name in DATASETS],
    localrule: True
