"""OpenAI's wire types: data only, one file per endpoint."""
