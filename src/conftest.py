"""Where Flower is not installed, pytest looks for no examples in the room that needs it."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["fedskip/flower/*"]
