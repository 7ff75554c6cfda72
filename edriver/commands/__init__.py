"""The subcommands: what `edriver COMMAND` does, one module each."""
