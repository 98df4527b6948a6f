"""The subcommands of `fedjax-srp`; `fedjax_srp.commands.cli` reads the command line."""
