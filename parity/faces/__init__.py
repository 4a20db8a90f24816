"""The interfaces for people: the command line, the pytest plugin, the fixture. They read options and end with exit codes;
`parity.report` makes the text they print."""
