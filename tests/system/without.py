"""Create this environment without a framework: `python tests/system/without.py torch FOLDER`.

It links to the packages of this environment, so it needs no download and almost no disk. As after
an uninstall, an empty folder with the framework's name remains.
"""

import sys
import sysconfig
import venv
from pathlib import Path

WITHOUT = {"torch": ("torch", "torchgen", "functorch"), "mlx": ("mlx", "mlx_cpu", "mlx_metal")}
"""Names of each framework's packages; names of distributions also have a version."""


def make(framework: str, folder: Path) -> None:
    """Create the environment without a framework in a folder."""
    venv.create(folder, clear=True)
    here, there = (
        Path(sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base}))
        for base in (sys.prefix, str(folder.absolute()))
    )
    for package in here.iterdir():
        if package.name.split("-")[0] not in WITHOUT[framework]:
            (there / package.name).symlink_to(package)
    (there / framework).mkdir()
    for script in Path(sys.prefix, "bin").iterdir():
        text = script.read_bytes()
        interpreter, _, rest = text.partition(b"\n")
        if interpreter.startswith(b"#!") and b"python" in interpreter:
            copy = folder / "bin" / script.name
            copy.write_bytes(b"#!%b\n%b" % (bytes(folder.absolute() / "bin" / "python"), rest))
            copy.chmod(0o755)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
