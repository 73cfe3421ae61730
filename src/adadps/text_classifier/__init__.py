"""A linear classifier of texts: public words, per-text norms, private training, a saved folder."""
