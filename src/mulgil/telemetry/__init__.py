"""What is told of the process and its requests: every metric, field of a log line and span has its name here."""
