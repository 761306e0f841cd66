"""One object per method: which units it can work on, their states, paths and prices."""
