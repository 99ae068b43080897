"""The response cache: which requests are the same, what is kept of an answer, and where."""
