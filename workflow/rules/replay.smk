# Imported runs: today's code repeats three steps of one run of each group, and step 0 of the others.
#
# The verdicts of the runs say which of them count. They change in place, so the list of replays is
# the output, and an input of tables. A run without a verdict on today's code waits: then both are
# made again. The figures of a platform of imported runs can only be planned once the replays are
# done: hence a checkpoint.


checkpoint replay_runs:
    input:
        files_of_replay,
        config=f"{RESULTS}/config.json",
    output:
        replays=f"{RESULTS}/replay/{{study}}/{{backend}}.txt",
    log:
        f"{RESULTS}/logs/replay/{{study}}-{{backend}}.log",
    conda:
        "../../envs/{backend}.yaml"
    threads: CONFIG.compute.threads
    resources:
        mem_mb=CONFIG.compute.mem_mb,
        runtime=CONFIG.compute.runtime,
        gpu=CONFIG.compute.gpu,
    params:
        is_installed=lambda w: w.backend in INSTALLED,
        code_hash=hash_for(code_hash, "fathom_study.runs.replay", "fathom_study.runs.verdict"),
    shell:
        "fathom replay {wildcards.backend:q} --study {wildcards.study:q} --config {input.config:q}"
        ' --compute "$FATHOM_COMPUTE" > {log:q} 2>&1'


rule replay:
    input:
        REPLAYS,
