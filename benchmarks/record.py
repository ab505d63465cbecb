"""Write the hashes of a kept result's files, which `fathom verify` checks.

python benchmarks/record.py results/reference
"""

import sys
from pathlib import Path

from fathom.system.errors import UserError, fail
from fathom_study.report.integrity.kept import SUMS, record

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        print(f"{folder / SUMS}: {record(folder)} files")
    except UserError as error:
        fail(str(error))
