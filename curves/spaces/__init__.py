"""The collections by name. A new one is a file beside these and a name in this list."""

from curves.collection import Collection
from curves.spaces.funnel import FUNNEL
from curves.spaces.images import IMAGES
from curves.spaces.tabular import TABULAR
from curves.spaces.text import TEXT

COLLECTIONS: dict[str, Collection] = {each.name: each for each in (TABULAR, FUNNEL, IMAGES, TEXT)}
