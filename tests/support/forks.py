"""Modules run in forks of a process that has loaded Snakemake, which takes most of their time.

This loads nothing of fathom: each fork finds it where its Snakefile does.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["snakemake.cli"])


def run_module(name, *arguments, folder):
    """Run `python -m NAME ARGUMENTS` in a folder to its end."""
    with tempfile.TemporaryDirectory() as outputs:
        files = Path(outputs, "stdout"), Path(outputs, "stderr")
        process = FORKS.Process(
            target=become, args=(name, [*map(str, arguments)], folder, dict(os.environ), files)
        )
        process.start()
        process.join()
        stdout, stderr = (file.read_text(errors="replace") for file in files)
    return subprocess.CompletedProcess(arguments, process.exitcode, stdout, stderr)


def become(name, arguments, folder, environment, files):
    """Run the module in this process, with its output in files."""
    for standard, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), standard)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv[1:] = arguments
    runpy.run_module(name, run_name="__main__", alter_sys=True)
