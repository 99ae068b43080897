"""Who may call: keys, the records behind them, and where they come from."""
