"""The `kbatch` command."""
