"""Cases that the fast tests leave out."""

from tests.training import test_gpu, test_schemes, test_torch_counting

test_a_step_of_every_scheme_mixes_no_devices_and_reads_nothing_back = (
    test_gpu.test_a_step_of_every_scheme_mixes_no_devices_and_reads_nothing_back.others
)
test_the_first_step_on_each_backend_equals_the_oracle = (
    test_schemes.test_the_first_step_on_each_backend_equals_the_oracle.others
)
test_counted_products_equal_a_real_step = (
    test_torch_counting.test_counted_products_equal_a_real_step.others
)
