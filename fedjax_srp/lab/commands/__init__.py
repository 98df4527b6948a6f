"""The subcommands of `fedjax-srp`; `fedjax_srp.lab.commands.cli` reads the command line."""
