"""Stickers of real pixels: how near an attacker with the whole model in his hands comes to the bound."""
