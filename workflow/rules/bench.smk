# How fast it is: a target of its own, since its numbers are of the machine and of the moment.


rule bench:
    output:
        table=f"{STORE}/tables/bench.csv",
        figure=in_report(f"{STORE}/figures", OF_BENCH, category="Speed"),
    log:
        f"{STORE}/logs/bench.log",
    conda:
        "../../envs/bench.yaml"
    # All of them: what is measured has the machine to itself. On a cluster, where Snakemake is told
    # of no number, its scheduler sees to that.
    threads: workflow.resource_settings.cores or 1
    resources:
        mem_mb=CONFIG.compute.mem_mb,
        runtime=60,
    params:
        captions=captions_of(OF_BENCH),
        code_hash=provenance.code_hash("fathom.bench.measure", "fathom.report.figures.bench"),
    shell:
        "fathom bench steps growth startup dry-run sweep"
        " --out {output.table:q} --figure {output.figure[0]:q} > {log:q} 2>&1"
