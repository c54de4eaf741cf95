"""A study as screens and pages see it."""

from __future__ import annotations

from datetime import UTC, datetime

from freezethaw.report.view import StudyView
from freezethaw.study import Study


def view_of(study: Study) -> StudyView:
    """Everything that a display needs, taken from the study as it stands."""
    problem = study.problem
    return StudyView(
        name=study.name,
        metric=problem.metric,
        goal=problem.scale.goal,
        unit=problem.utility.unit,
        budget=problem.utility.budget,
        max_epochs=problem.max_epochs,
        initial=problem.initial,
        utility_text=problem.utility.describe(),
        utility=problem.utility,
        history=study.history,
        decision=study.last_decision,
        stop=study.stop,
        rate=problem.utility.rate,
        storage=study.storage,
        writer=study.writer,
        started_at=datetime.fromtimestamp(study.created, UTC).isoformat(timespec="seconds"),
    )
