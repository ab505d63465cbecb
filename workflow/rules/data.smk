# The data set, fetched once and checked by its SHA-256.


# The images are no outputs: Snakemake deletes those before a job, and a user may have put them
# there by hand. Nor is the code a parameter: an edit of it is no reason to fetch again.
rule data:
    output:
        DATA,
    log:
        f"{RESULTS}/logs/data.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        unavailable=NO_DATA,
    shell:
        "fathom fetch --record {params.unavailable:q} 2> {log:q}"
