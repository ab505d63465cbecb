"""Python with a backend loaded, in a process of its own that forks for every command line.

    python forking_server.py BACKEND

Each line on stdin is a request in JSON: `arguments` of Python, as in `-m fathom train-all` or
`-c CODE`; the `folder` to run them in; and the file that `output` goes to. Each line on stdout is
the exit status, negative for a signal. To load MLX takes longer than a training of these tests.
"""

import json
import os
import runpy
import sys

from fathom import preload


def main() -> None:
    """Answer until stdin closes."""
    preload.load_backend(sys.argv[1], "auto")
    for line in sys.stdin:
        fork = os.fork()
        if fork == 0:
            become(json.loads(line))
        _, status = os.waitpid(fork, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(request: dict) -> None:
    """Run what is asked for, and end."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.chdir(request["folder"])
    option, what, *sys.argv[1:] = request["arguments"]
    status = 0
    try:
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001, shown as Python shows it
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
