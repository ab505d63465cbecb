# What every stage needs: the checked config, its cells, and how a job calls fathom.

import functools
import json
import shlex

CONFIG = or_exit(study.check_config, config, " + ".join(map(str, workflow.configfiles)))

CONDA = bool(workflow.deployment_settings.deployment_method)

# Jobs use the interpreter that runs Snakemake, activated or not; inside a conda environment, its
# own. The path lets both find fathom without installing it there. How jobs compute reaches them
# through the environment and not as a parameter: it changes no result, so it must retrain nothing.
python = "python" if CONDA else shlex.quote(sys.executable)
source = shlex.quote(str(Path(workflow.basedir).parent / "src"))
compute = shlex.quote(CONFIG.compute.model_dump_json())
data = shlex.quote(CONFIG.compute.data)
prefix = (
    f"export PYTHONPATH={source} FATHOM_COMPUTE={compute} FATHOM_DATA={data}; "
    f'fathom() {{ {python} -m fathom "$@"; }}; '
)
shell.prefix(prefix.replace("{", "{{").replace("}", "}}"))  # Snakemake formats it once more

RESULTS = CONFIG.results

INSTALLED = study.BACKENDS if CONDA or CONFIG.assume_backends else study.installed_backends()

# Written once the data set is there and checked; the other, if it could not be had.
DATA = f"{CONFIG.compute.data}/fashion-mnist/SHA256SUMS"
NO_DATA = f"{CONFIG.compute.data}/fashion-mnist/unavailable.txt"


def has_data(cell):
    """False for a cell of the image study once fetching its data has failed."""
    needed = CONFIG.studies[cell.study].task == "fashion"
    return not needed or Path(DATA).exists() or not Path(NO_DATA).exists()


CELLS = [c for c in CONFIG.cells() if c.backend in INSTALLED and has_data(c)]

if not all(map(has_data, CONFIG.cells())):
    print(
        f"fathom: Fashion-MNIST could not be had, so its studies are left out; {NO_DATA} says what "
        "was tried (snakemake data tries again)",
        file=sys.stderr,
    )

for backend in sorted({cell.backend for cell in CONFIG.cells()} - set(INSTALLED)):
    skipped = sum(cell.backend == backend for cell in CONFIG.cells())
    print(
        f"fathom: backend {backend} is not installed here: {skipped} cells are left out "
        f"(pip install -e '.[{backend}]' brings it)",
        file=sys.stderr,
    )

RUN_FILES = ("spec.json", "metrics.jsonl", "summary.json", "manifest.json")


def run_files(cell):
    """The files that training a cell leaves."""
    return [f"{RESULTS}/runs/{cell.path()}/{name}" for name in RUN_FILES]


def imported_runs():
    """(platform, cell) of the imported runs that the config and the code of today would repeat.

    Others stay where they are and in no table; `fathom status` says why.
    """
    runs = []
    for folder in sorted(Path(RESULTS).glob("imported/*/")):
        for cell in CONFIG.cells():
            manifest_file = folder / cell.path() / "manifest.json"
            if not manifest_file.exists():
                continue
            spec = CONFIG.spec(cell)
            code = provenance.code_hashes(*provenance.training_modules(spec.task, cell.backend))
            try:
                manifest = json.loads(manifest_file.read_text())
                current = (manifest["spec_hash"], manifest["code"]) == (
                    spec.hash(),
                    code,
                )
            except (ValueError, KeyError, TypeError, RecursionError):
                current = True  # damaged: the tables refuse it by name
            if current:
                runs.append((folder.name, cell))
    return runs


IMPORTED = imported_runs()
STUDIES = list(dict.fromkeys(cell.study for cell in [*CELLS, *(c for _, c in IMPORTED)]))


def imported_files():
    return [
        f"{RESULTS}/imported/{platform}/{cell.path()}/{name}"
        for platform, cell in IMPORTED
        for name in RUN_FILES
    ]


def places(study_name):
    """Folders of figures: a backend for what is trained here, backend-platform for the rest."""
    here = [cell.backend for cell in CELLS if cell.study == study_name]
    carried = [f"{c.backend}-{platform}" for platform, c in IMPORTED if c.study == study_name]
    return sorted({*here, *carried})


@functools.lru_cache(maxsize=1)  # a rule asks twice in a row
def spec_of_cell(cell):
    return CONFIG.spec(cell)


def spec_of(wildcards):
    w = wildcards
    return spec_of_cell(Cell(w.study, int(w.depth), w.variant, w.backend, int(w.seed)))


@functools.cache  # the same for thousands of cells
def training_code(task, backend):
    return provenance.code_hash(*provenance.training_modules(task, backend))


def code_of(wildcards):
    return training_code(CONFIG.studies[wildcards.study].task, wildcards.backend)


COMPARISONS = (
    "loss_comparison",
    "grad_norm_comparison",
    "gain_comparison",
    "depth_scaling",
)
CELL_FIGURES = ("loss", "grad_norm", "nan_inf_events", "gain_proxy")


def deepest(study_name):
    """The name of the head-to-head figure, as in 48l_comparison."""
    depth = max(c.depth for c in [*CELLS, *(c for _, c in IMPORTED)] if c.study == study_name)
    return f"{depth}l_comparison"


IMAGE_FIGURES = ("comparison", "mixing_matrix")


def figure_names(study_name):
    """The figures of a study: those of the image study are its own."""
    if CONFIG.studies[study_name].task == "fashion":
        return IMAGE_FIGURES
    return (*COMPARISONS, deepest(study_name))


def caption_of(figure):
    return "deepest_comparison" if figure.endswith("l_comparison") else figure


def study_figures(study_name):
    names = figure_names(study_name)
    folder = f"{RESULTS}/figures/{study_name}"
    return [f"{folder}/{place}/{name}.png" for place in places(study_name) for name in names]


def place_options(place):
    """How `fathom figures` is told of a place."""
    backend, _, platform = place.partition("-")
    if platform:
        return f"--backend {backend} --platform {platform} --runs {RESULTS}/imported/{platform}"
    return f"--backend {backend} --runs {RESULTS}/runs"


def data_of(wildcards):
    """What a cell reads: the image study its data, the others nothing."""
    return ancient(DATA) if CONFIG.studies[wildcards.study].task == "fashion" else []


wildcard_constraints:
    study="|".join(STUDIES),
    depth="[0-9]+",
    variant="[a-z0-9_]+",
    backend="|".join(INSTALLED),
    place="[a-z0-9-]+",
    seed="[0-9]+",
