# Where `snakemake` begins in this folder. The workflow itself is in workflow/, where the catalog of
# workflows and other workflows' modules expect it; `profiles` is a link to its profiles.


include: "workflow/Snakefile"
