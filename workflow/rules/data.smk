# The data sets, fetched once and checked by their SHA-256.

for name in DATASETS:

    # The files are no outputs: Snakemake deletes those before a job, and a user may have put them
    # there by hand. Nor is the code a parameter: an edit of it is no reason to fetch again.
    rule:
        name:
            f"data_{name}"
        output:
            str(folder_of_data(name) / datasets.SUMS),
        log:
            f"{STORE}/logs/data-{name}.log",
        localrule: True
        conda:
            "../../envs/report.yaml"
        params:
            name=name,
            unavailable=str(folder_of_data(name) / datasets.UNAVAILABLE),
        shell:
            "fathom fetch {params.name:q} --record {params.unavailable:q} 2> {log:q}"


rule data:
    input:
        [str(folder_of_data(name) / datasets.SUMS) for name in DATASETS],
    localrule: True
