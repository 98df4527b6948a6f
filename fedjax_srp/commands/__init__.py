"""What the subcommands of `fedjax-srp` do; `fedjax_srp.commands.cli` reads the command line."""
