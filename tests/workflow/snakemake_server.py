"""Snakemake, loaded once, in a process of its own that forks for every command line.

Each line on stdin is a request in JSON: `arguments`, `folder`, `environment`, and the files that
`stdout` and `stderr` go to. Each line on stdout is the exit status. To start the interpreter and
load Snakemake takes three seconds, most of what a test of the workflow would take. Of fathom
nothing is loaded here: every fork finds it where its own Snakefile does.
"""

import json
import os
import sys

import snakemake.cli


def main() -> None:
    """Answer until stdin closes."""
    assert "fathom" not in sys.modules
    for line in sys.stdin:
        request = json.loads(line)
        fork = os.fork()
        if fork == 0:
            run(request)
        _, status = os.waitpid(fork, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(request: dict) -> None:
    """Become the command that is asked for."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for standard, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), standard)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    sys.argv = ["snakemake", *request["arguments"]]
    try:
        snakemake.cli.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
