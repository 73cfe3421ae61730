"""The privacy card: what may be claimed about a run's privacy, for programs and for people.

A card is built from the public description of a result and nothing else, so that it can be rebuilt
from ``result.json`` and compared.
"""

from adadps.report.card.meaning import card_of
from adadps.report.card.rendering import CARD_JSON, CARD_MARKDOWN, markdown_of, schema, write_card

__all__ = ["CARD_JSON", "CARD_MARKDOWN", "card_of", "markdown_of", "schema", "write_card"]
