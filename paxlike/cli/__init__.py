"""The commands of `paxlike COMMAND`: one module each, `main(arguments)`."""
