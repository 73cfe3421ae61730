"""Settings that need no tuning, from public quantities alone."""
