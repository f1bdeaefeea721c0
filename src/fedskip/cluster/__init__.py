"""Work on the devices of a Ray cluster: joined or started, handed out, done again where a worker is lost.

It knows of errands, not of runs: what is done on a device is brought along.
"""
