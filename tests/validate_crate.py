"""roc-validator's answer on a crate, without a network: run by the validator's own interpreter.

    validate_crate.py CRATE CONTEXT

RO-Crate's terms are read from the file CONTEXT instead of from their address. Prints a JSON object:
`checks`, how many there were, and `issues`, what is wrong.
"""

import json
import sys
from pathlib import Path

import requests
from requests.adapters import BaseAdapter
from rocrate_validator import services
from rocrate_validator.utils.http import HttpRequester

PROFILE = "provenance-run-crate"
ADDRESS = "https://w3id.org/ro/crate/1.1/context"


class OneFile(BaseAdapter):
    """Answers with the file for its address, and refuses any other."""

    def __init__(self, content):
        super().__init__()
        self.content = content

    def send(self, request, **_):
        answer = requests.Response()
        answer.url, answer.request = request.url, request
        answer.status_code = 200 if request.url == ADDRESS else 404
        answer._content = self.content
        answer.headers["Content-Type"] = "application/ld+json"
        return answer

    def close(self):
        pass


def main() -> None:
    """Validate and print."""
    crate, context = map(Path, sys.argv[1:])
    settings = services.ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier=PROFILE,
        requirement_severity="REQUIRED",
        no_cache=True,
    )
    session = requests.Session()
    session.mount("https://", OneFile(context.read_bytes()))
    session.mount("http://", OneFile(b""))
    HttpRequester().session = session
    result = services.validate(settings)
    print(
        json.dumps(
            {
                "checks": len(result.executed_checks),
                "issues": [f"{i.check.identifier}: {i.message}" for i in result.get_issues()],
            }
        )
    )


if __name__ == "__main__":
    main()
