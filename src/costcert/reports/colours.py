"""The colours of drawings of single images: those of Okabe and Ito.

A page may set others for a dark background, by the names here.
"""

TRUE, ATTACKER, OTHER = "var(--true, #0072B2)", "var(--attack, #D55E00)", "var(--other, #8b949e)"
QUIET, PAPER, EMPTY = "var(--quiet, #5a616a)", "var(--paper, #fff)", "var(--soft, #f3f5f7)"
# Colours of the strongest rivals, in order.
RIVALS = ("#E69F00", "#009E73", "#CC79A7", "#56B4E9")
