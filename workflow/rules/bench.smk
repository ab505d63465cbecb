# How fast it is: a target of its own, since its numbers are of the machine and of the moment.


rule bench:
    output:
        table=f"{RESULTS}/tables/bench.csv",
        figure=report(
            f"{RESULTS}/figures/bench.png",
            category="Speed",
            caption="../report/bench.rst",
        ),
    log:
        f"{RESULTS}/logs/bench.log",
    conda:
        "../../envs/bench.yaml"
    # All of them: what is measured has the machine to itself.
    threads: workflow.cores or 1
    params:
        code_hash=provenance.code_hash("fathom.bench"),
    shell:
        "fathom bench steps growth startup dry-run sweep"
        " --out {output.table:q} --figure {output.figure:q} > {log:q} 2>&1"
