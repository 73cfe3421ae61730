"""The commands, one module each; `adadps.cli.main` imports the one that is called."""
