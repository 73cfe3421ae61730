"""The commands, one file each; `adadps.cli` joins them."""
