"""`make new-releases`: modules of other packages that have to be read."""

import pytest

from tests.peers import new_releases

CODE = "class {}:\n    def forward(self, x, {}):\n        return x + self.{} * x\n"


@pytest.fixture
def folder(tmp_path):
    """Function that writes a module of CODE into a package and returns the folder of packages."""

    def make(package, module, *names):
        where = tmp_path / package / "models"
        where = where / module if package == "transformers" else where
        where.mkdir(parents=True, exist_ok=True)
        name = f"modeling_{module}.py" if package == "transformers" else f"{module}.py"
        (where / name).write_text(CODE.format(*names), encoding="utf-8")
        return tmp_path

    return make


@pytest.mark.parametrize("package", ["transformers", "mlx_lm"])
def test_an_unknown_module_is_listed_with_its_matching_names(folder, capsys, package):
    """`test_peers` checks the pattern of names against the releases."""
    folder(package, "quite_new", "Layer", "y", "residual_scale")
    packages = folder(package, "llama", "Layer", "residual", "weight")
    with pytest.raises(SystemExit, match="1 to read"):
        new_releases.main(packages)
    assert capsys.readouterr().out == f"{package}.quite_new: residual_scale\n"


def test_modules_that_are_schemes_or_were_read_are_not_listed(folder, capsys):
    folder("transformers", "deepseek_v4", "DeepseekV4HyperConnection", "y", "w")
    folder("transformers", "beit", "Layer", "y", "lambda_1")
    new_releases.main(folder("mlx_lm", "talkie", "Block", "y", "embed_skip"))
    assert "all 3 modules" in capsys.readouterr().out


def test_a_folder_without_packages_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no models of transformers or mlx_lm; run make"):
        new_releases.main(tmp_path)
