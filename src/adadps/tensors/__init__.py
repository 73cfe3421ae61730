"""Row-sparse tensors, sums of outer products, compiled loops and threads; no privacy."""
