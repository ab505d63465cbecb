"""Process that loads slow modules once and forks for every Python command line.

    python forking_server.py CODE

CODE runs first: loading Snakemake or a framework takes most of the time of a test's command. Each
line on stdin is a request in JSON: `arguments` of Python, as in `-m fathom train-all` or `-c CODE`,
the `folder` to run in, the `environment`, and the files for `stdout` and `stderr`. Each line on
stdout is the exit status, negative for a signal.
"""

import json
import os
import runpy
import sys


def main() -> None:
    """Answer requests until stdin closes."""
    exec(sys.argv[1], {})  # noqa: S102
    for line in sys.stdin:
        fork = os.fork()
        if fork == 0:
            become(json.loads(line))
        _, status = os.waitpid(fork, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(request: dict) -> None:
    """Run the requested command and exit."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), standard)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    option, what, *sys.argv[1:] = request["arguments"]
    status = 0
    try:
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001, shown as Python shows it
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
