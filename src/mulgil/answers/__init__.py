"""Answers that are made once and told to all who ask the same: kept ones, and those that are being made."""
