"""Patches of real pixels: how close a white-box attack comes to the certified bound."""
