"""Why a command ended, where that is no bug: on request, or for what one process of several has seen."""


class Stopped(Exception):
    """A run that ended early because it was asked to; its last checkpoint is where --resume goes on."""


class ProcessError(ValueError):
    """What one process of several has seen by itself, so that it must say so itself."""


class Diverged(ValueError):
    """Weights or losses are not finite any more; nothing that holds such numbers is written."""
