"""What the subcommands of `fedjax-srp` do; `fedjax_srp.cli` reads the command line."""
