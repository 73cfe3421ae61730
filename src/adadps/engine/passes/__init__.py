"""How a model is run on private rows: checked on synthetic rows first, and in isolation."""
