"""The merge of all paths into one trajectory."""
