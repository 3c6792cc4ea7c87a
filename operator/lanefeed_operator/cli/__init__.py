"""The command `lanefeed`: one module a command, `main` joins them. Errors are one line, never a traceback."""
