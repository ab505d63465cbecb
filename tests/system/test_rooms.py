"""The library imports nothing of the study, and a room only rooms below it."""

import ast
import functools
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
LIBRARY, STUDY = "fathom", "fathom_study"

ROOMS = {
    LIBRARY: (
        "system", "settings", "operations", "arithmetic", "init", "connections", "library",
        "attach", "torch", "mlx",
    ),
    STUDY: (
        "system", "models", "metrics", "spec", "datasets", "batch", "tasks", "config", "optimizers",
        "backends", "train", "runs", "analysis", "board", "report", "cli", "preload", "__main__",
    ),
}  # fmt: skip
"""Rooms of each package from bottom to top, in the order of the drawing in CONTRIBUTING."""


@functools.cache
def parsed(file):
    """The syntax tree of a file."""
    return ast.parse((SOURCES / file).read_text(encoding="utf-8"))


@functools.cache
def imports_of(file):
    """(line, module) of every import that runs, without imports for type checkers."""
    tree, result = parsed(file), []
    skipped = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in skipped:
            result += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node not in skipped:
            assert node.level == 0, f"{file}: relative import"
            result += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return result


def room_of(path):
    return path.parts[1].removesuffix(".py")


FILES = [
    f.relative_to(SOURCES) for p in (LIBRARY, STUDY) for f in sorted((SOURCES / p).rglob("*.py"))
]


def test_every_module_is_in_a_room():
    for package, rooms in ROOMS.items():
        result = {room_of(file) for file in FILES if file.parts[0] == package}
        assert result == {*rooms, "__init__"}


def test_the_library_never_imports_the_study():
    library = [file for file in FILES if file.parts[0] == LIBRARY]
    assert library
    assert not [f for f in library for _, module in imports_of(f) if module.startswith(STUDY)]


def test_a_room_imports_only_rooms_below_it():
    upward = []
    for file in FILES:
        rooms = ROOMS[file.parts[0]]
        own = rooms.index(room_of(file)) if room_of(file) in rooms else -1
        for line, module in imports_of(file):
            package, _, rest = module.partition(".")
            room = rest.partition(".")[0]
            if package == file.parts[0] and room in rooms and rooms.index(room) > own:
                upward.append(f"{file}:{line} imports {module}")
    assert not upward


def test_only_backends_and_modules_for_other_networks_import_a_framework():
    """Other code is the same without a framework, so `--alone` leaves its tests out."""
    allowed = {"backends", "operations", "torch", "mlx"}
    named = [
        f"{file}:{line} imports {module}"
        for file in FILES
        if room_of(file) not in allowed and file != Path(LIBRARY, "connections/module.py")
        for line, module in imports_of(file)
        if module.partition(".")[0] in FRAMEWORKS
    ]
    assert not named


FRAMEWORKS = ("torch", "mlx")


def test_a_module_of_one_framework_imports_nothing_of_the_other():
    """Numbers are the same without the other, so `--alone` takes one case of each test."""
    own = {framework: [] for framework in FRAMEWORKS}
    for file in FILES:
        for framework in FRAMEWORKS:
            if file.stem.split("_")[0] == framework:
                own[framework] += [(file, line, module) for line, module in imports_of(file)]
    crossed = [
        f"{file}:{line} imports {module}"
        for framework, imports in own.items()
        for file, line, module in imports
        for part in module.split(".")
        if part.split("_")[0] in set(FRAMEWORKS) - {framework}
    ]
    assert all(own.values())
    assert not crossed


def test_only_tasks_and_their_own_files_name_a_task():
    """DESIGN's contract: a task is one file, so no other may branch on its name."""
    from fathom_study.tasks import TASKS

    own = {"tasks", "datasets"}
    named = []
    for file in FILES:
        if room_of(file) in own:
            continue
        named += [
            f"{file}:{node.lineno}"
            for test in ast.walk(parsed(file))
            if isinstance(test, ast.Compare | ast.match_case)
            for node in ast.walk(test)
            if isinstance(node, ast.Constant) and node.value in TASKS
        ]
    assert not named


def test_no_file_of_the_report_has_the_name_of_another():
    own = [file for file in FILES if file.parts[:2] == (STUDY, "report")]
    others = [file for file in FILES if file not in own]
    names = Counter(file.name for file in own if file.name != "__init__.py")
    assert names.keys().isdisjoint(file.name for file in others)
    assert max(names.values()) == 1


def test_imports_have_no_cycle():
    """Imports for type checkers and inside functions count too."""
    files = {".".join(f.with_suffix("").parts).removesuffix(".__init__"): f for f in FILES}
    graph = {}
    for name, file in files.items():
        imported = [node for node in ast.walk(parsed(file)) if isinstance(node, ast.ImportFrom)]
        result = {
            module if module in files else node.module
            for node in imported
            for module in (f"{node.module}.{alias.name}" for alias in node.names)
        }
        graph[name] = (result & files.keys()) - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle
