"""Channel affines: y = scale * x + shift with one number per channel, and how they move through a graph.

`algebra` is what an affine is, `recognise` finds the operators that are one, `layers` knows the operators that can
absorb one into their weights, and `backward`, `forward` and `elementwise` how one passes through all others.
"""
