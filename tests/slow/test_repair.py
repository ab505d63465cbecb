"""`fathom verify` finds damage to the workflow's results, and its advice fixes it."""

import shlex
import shutil

CONFIGS = ("config.yaml", ".test/config/config.yaml", "grid.yaml")


def verify(fathom):
    """(exit status, lines) of the command."""
    status, said, errors = fathom("verify", *(word for name in CONFIGS for word in ("-c", name)))
    return status, [*said.splitlines(), *errors]


def derived(folder):
    """Content of every file that is made from runs, by name."""
    results = folder / "results/smoke"
    files = [*results.glob("*.*"), *results.glob("tables/**/*"), *results.glob("figures/**/*.*")]
    return {str(f.relative_to(results)): f.read_bytes() for f in files if f.is_file()}


def damage_everything(results):
    """Damage files of every kind; returns the names that `verify` must report."""
    torch = results / "figures/depth-mlx/torch"
    (results / "config.json").write_text("{")
    with (results / "RESULTS.md").open("a") as report:
        report.write("And more.\n")
    (results / "COMPARISON.md").unlink()
    (results / "COMPARISON.md").mkdir()
    for name in ("claims.csv", "summary.csv"):
        table = results / "tables" / name
        table.write_text(table.read_text().replace("mhc", "mch", 1))
    (results / "tables/cells.csv").unlink()
    (results / "tables/studies/depth-mlx/worth.csv").unlink()
    shutil.copy(results / "figures/depth-mlx/mlx/depth_scaling.png", torch)
    (torch / "loss.png").unlink()
    (results / "figures/depth-torch/mlx/figures.json").unlink()
    with (results / "figures/overview/score_against_depth.png").open("ab") as figure:
        figure.write(b"0")
    stray = results / "figures/old/torch/loss.png"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"")
    (torch / "grad_norm.svg").unlink()  # which the page shows
    shown = {"index.html"} if (results / "index.html").exists() else set()
    return shown | {
        "config.json", "RESULTS.md", "COMPARISON.md", "tables/claims.csv", "tables/summary.csv",
        "tables/cells.csv", "tables/studies/depth-mlx/worth.csv",
        "figures/depth-mlx/torch/depth_scaling.png",
        "figures/depth-mlx/torch/loss.png",
        "figures/depth-mlx/torch/grad_norm.svg", "figures/depth-torch/mlx/figures.json",
        "figures/overview/score_against_depth.png", "figures/old/torch/loss.png",
    }  # fmt: skip


def repaired(workflow, lines):
    """Follow the advice: delete the files and run the workflow; returns its standard error."""
    (advice,) = [line for line in lines if line.startswith("fathom: to fix: delete ")]
    delete, _, make = advice.removeprefix("fathom: to fix: delete ").partition(", then run ")
    for file in (workflow.folder / name for name in delete.split(", ")):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    program, *arguments = shlex.split(make)
    assert program == "snakemake"
    result = workflow.snakemake(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_the_advice_of_verify_fixes_everything(workflow, monkeypatch, fathom):
    monkeypatch.chdir(workflow.folder)
    before = derived(workflow.folder)
    named = damage_everything(workflow.folder / "results/smoke")
    status, lines = verify(fathom)
    assert status == 1
    reported = {line.split(": ")[1].removeprefix("results/smoke/") for line in lines[:-2]}
    assert reported == named

    said = repaired(workflow, lines)
    assert ": train " not in said
    status, lines = verify(fathom)
    assert (status, lines) == (0, [lines[0]])
    assert lines[0].startswith("verified: 10 runs, ")
    assert derived(workflow.folder) == before
