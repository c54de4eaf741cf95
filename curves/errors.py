"""What can be wrong with the data, the downloads and the parts of a collection."""

from freezethaw.errors import FreezeThawError


class CollectError(FreezeThawError):
    """A collection cannot go on; the message says what to do."""
