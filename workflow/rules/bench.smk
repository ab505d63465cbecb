# How fast it is. A target of its own, since its numbers depend on the machine and the moment.


rule bench:
    output:
        table=f"{STORE}/tables/bench.csv",
        figure=in_report(f"{STORE}/figures", OF_BENCH, category="Speed"),
    log:
        f"{STORE}/logs/bench.log",
    conda:
        "../../envs/bench.yaml"
    threads: CORES
    resources:
        mem_mb=CONFIG.compute.mem_mb,
        runtime=60,
    params:
        captions=captions_of(OF_BENCH),
        code_hash=code_hash("fathom.bench.measure", "fathom.report.figures.bench"),
    shell:
        "fathom bench steps startup dry-run sweep"
        " --out {output.table:q} --figure {output.figure[0]:q} > {log:q} 2>&1"
