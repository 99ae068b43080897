"""HTTP. Besides `app` and `cli`, nothing else in the package knows it."""
