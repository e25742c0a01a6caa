"""Who is measured: the bundled engine, a server that runs already, or one that a command starts."""
