# One job per cell.
#
# A cell is trained if its run is missing or not current. `fathom_study.runs.validate` decides that, as
# for `fathom status`; parameters and file times do not.


rule train:
    input:
        inputs_of_training,
    output:
        spec=f"{RUN}/spec.json",
        metrics=f"{RUN}/metrics.jsonl",
        mixing=f"{RUN}/mixing.safetensors",
        manifest=f"{RUN}/manifest.json",
    log:
        f"{STORE}/logs/train/{CELL_LOG}.log",
    benchmark:
        # Seconds are valid for every job; memory and CPU time for jobs with their own process,
        # on a cluster or with `compute.preload: false`.
        f"{STORE}/benchmarks/{CELL_LOG}.tsv"
    group:
        SHARED_JOBS
    conda:
        "../../envs/{backend}.yaml"
    threads: CONFIG.compute.threads
    resources:
        mem_mb=CONFIG.compute.mem_mb,
        runtime=CONFIG.compute.runtime,
        gpu=CONFIG.compute.gpu,
        at_once=1,
    params:
        # Snakemake records no value of a function of the output: STARTED decides.
        spec=lambda w, output: PLAN.spec(cell_of(w)).json(),
        folder=subpath(output.manifest, parent=True),
    message:
        f"train {CELL_NAME}"
    shell:
        "fathom job {params.spec:q} --out {params.folder:q}"
        ' --compute "$FATHOM_COMPUTE" 2> {log:q}'
