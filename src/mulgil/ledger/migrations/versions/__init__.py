"""A module for each step. A step only adds, so that gateways of two versions can share a database."""
