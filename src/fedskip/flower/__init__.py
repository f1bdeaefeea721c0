"""A federation over a network: server and clients as Flower apps, and the processes that run them.

What this package uses of Flower beyond its documented API is listed here, with the release it is tested with.
"""

FLOWER = "1.41"  # the tested release
KEY_IN_USE = "[code: 23]"  # from `flwr supernode register`: this key is registered already
