"""What a run leaves behind: its result, its privacy card, its report.

- `result`: weights, metrics and the privacy statement of a run; `saved_result` reads them back and
  refuses files that adadps could not have written.
- `card`: the privacy card, a pure function of a result's description. `meaning` builds it and puts
  the guarantee into words, `rendering` writes it, `checking` recomputes it, and `audits` attaches
  the outcome of an audit.
- `html`: reports of one run or of several: `reports` builds them, `pages` lays out page and charts.

A new fact on the card goes into `card_of` in `card.meaning` and into `card_schema.json`.
"""
