"""The commands, one file each; `adadps.cli.main` joins them."""
