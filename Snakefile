# The workflow of workflow/Snakefile, where `snakemake` looks first. config.yaml has its studies,
# workflow/profiles its options, and `snakemake --list` its targets.


include: "workflow/Snakefile"


# An included file sets no default target.
rule everything:
    default_target: True
    input:
        rules.all.input,
    message:
        "everything"
