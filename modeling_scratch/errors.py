"""Why a command ends: what a user can mend, what one process of several has seen, a request to stop."""


class UserError(ValueError):
    """What a user can mend: what is wrong, where, and what to do. A command line prints it as one line."""


class ProcessError(UserError):
    """What one process of several has seen by itself, so that it must say so itself."""


class Diverged(UserError):
    """Weights or losses are not finite any more; nothing that holds such numbers is written."""


class Stopped(Exception):
    """A run that ended early because it was asked to; its last checkpoint is where --resume goes on."""
