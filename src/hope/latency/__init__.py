"""How long a network takes on this machine: operators measured once, whole networks predicted from them."""
