"""When two texts are the same for our purpose: what copying, editing and markup change is ignored.

A review that was public already is still that review with other line breaks, quotation marks or
capitals. So texts are compared by their letters and digits alone.
"""

from __future__ import annotations

import html
import re
import unicodedata

_TAG = re.compile(r"<[\s/!?]*+[a-zA-Z][^<>]*+>")
"""An HTML tag such as ``<br />``."""


class _LettersAndDigits(dict[int, int | None]):
    """A table for `str.translate` that keeps letters and numbers, and fills itself."""

    def __missing__(self, code: int) -> int | None:
        kept = code if unicodedata.category(chr(code))[0] in "LN" else None
        self[code] = kept
        return kept


_KEPT = _LettersAndDigits()


def normalised(text: str) -> str:
    """The letters and digits of ``text``, in Unicode's compatibility form without case or accents.

    HTML entities are resolved and tags dropped; white space, punctuation, symbols, accents and
    invisible characters are ignored. A text without a letter or digit is compared by its symbols.

    >>> normalised("It's  GREAT!<br /><br />Ｒｅａｌｌｙ &amp; truly.")
    'itsgreatreallytruly'
    >>> normalised(" :-) ")
    ':-)'
    """
    plain = _TAG.sub(" ", html.unescape(text))
    folded = unicodedata.normalize("NFD", plain).casefold()
    folded = unicodedata.normalize("NFKD", folded).casefold()
    folded = unicodedata.normalize("NFKD", folded)
    return folded.translate(_KEPT) or "".join(folded.split())
