"""Cases that the fast tests leave out."""

from tests.training import test_gpu, test_schemes, test_torch_counting

for module in (test_gpu, test_schemes, test_torch_counting):
    vars().update({n: f.others for n, f in vars(module).items() if hasattr(f, "others")})
