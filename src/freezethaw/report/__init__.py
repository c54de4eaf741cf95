"""A study shown: plain text, JSON, the last decision explained, and one HTML page."""

from freezethaw.report.page import html
from freezethaw.report.text import facts, first_failure, summary, to_json, why, why_json
from freezethaw.report.view import Peak, Standing, StudyView
from freezethaw.report.words import stop_sentence

__all__ = [
    "Peak",
    "Standing",
    "StudyView",
    "facts",
    "first_failure",
    "html",
    "stop_sentence",
    "summary",
    "to_json",
    "why",
    "why_json",
]
