"""Apply decisions to a copy of the model: real, smaller modules. Nothing here chooses."""
