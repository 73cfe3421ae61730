"""Named data sets: where they are, how they are fetched and verified, and loaders."""
