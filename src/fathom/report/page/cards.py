"""What a variant is: what the page shows where a reader asks for it, and as a tooltip."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from fathom.config import Config
from fathom.report.page.inline import as_json, packed
from fathom.report.schemes import COUNTED, about_schemes, components, variant_rows

Card = dict[str, str]


def packed_cards(config: Config, costs: Path) -> Markup:
    """Packed JSON: a card for every variant of every study, and what its numbers are.

    `costs`: a table of `benchmarks/steps.py schemes`, which may be missing.
    """
    return packed(as_json({"words": COUNTED, "studies": cards_of(config, costs)}))


def cards_of(config: Config, costs: Path) -> dict[str, dict[str, Card]]:
    """By study and variant: what is told of it, without what is not known."""
    about = about_schemes(costs)
    return {
        study: {
            row["variant"]: _card(config, study, row, about.get(row["scheme"], {}))
            for row in variant_rows(config, study)
        }
        for study in config.studies
    }


def _card(config: Config, study: str, row: Card, about: Card) -> Card:
    """What one variant is, from its row in the study's table and what is told of its scheme."""
    costs = {key: words for key, words in about.items() if key.startswith("cost")}
    told = {
        "label": config.labels.get(row["variant"], ""),
        "scheme": row["scheme"],
        "formula": about.get("formula", ""),
        "differs from the scheme in": row["settings"],
        "differs from the study in": row["training"],
        **components(config.connection(study, row["variant"])),
        f"parameters, {row['layers']}": row["parameters"],
        "parameters of the connection": about.get("parameters", ""),
        **costs,
        "source": about.get("source", ""),
    }
    return {key: words for key, words in told.items() if words}
