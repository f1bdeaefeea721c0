"""The ServerApp: what a SuperLink runs for a federation. Its folder is named by an environment variable.

Flower hands a run's configuration to every node. So the study, which has the seed and the period, is not
in there: it stays in the folder on the server.
"""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedskip.flower.serve import say, serve
from fedskip.input.errors import InputError, require

FOLDER = "FEDSKIP_FEDERATION"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the federation to its end."""
    named = os.environ.get(FOLDER, "")
    require(FOLDER, bool(named), "must name the federation's folder in the environment of the SuperLink")
    folder = Path(named)
    say(folder, "running")
    try:
        serve(folder, grid)
    except Exception as error:  # whatever it is, those who watch must get to know
        words = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        say(folder, "failed", words)
        raise
    say(folder, "finished")
