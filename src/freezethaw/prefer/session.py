"""Answers given, the next question, and what is known so far: terminal and page share it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from freezethaw.errors import PreferenceError
from freezethaw.prefer.file import UtilityFile, read_file, write_file
from freezethaw.prefer.words import one_sided, remarks, sentence
from freezethaw.preference import (
    Answer,
    Choice,
    Fit,
    Form,
    Outcome,
    Stakes,
    against_reason,
    contradictions,
    fit,
    trivial,
)
from freezethaw.questions import Crowd, Question, crowd_of, enough, next_question


class Session:
    """A row of questions, saved after each answer."""

    def __init__(
        self,
        path: Path,
        stakes: Stakes,
        *,
        metric: str | None = None,
        form: Form | None = None,
        among: Sequence[Outcome] = (),
        seed: int = 0,
    ) -> None:
        self.path = path
        self.stakes = stakes
        self.metric = metric
        self.form = form
        self.among = tuple(among)
        self.seed = seed
        self.answers: list[Answer] = []
        self._fit: Fit | None = None
        self._crowd: Crowd | None = None
        self._question: Question | None = None
        self._written: bytes | None = None
        """The file as this session last saw it."""

    @classmethod
    def resume(cls, path: Path, *, among: Sequence[Outcome] = (), seed: int = 0) -> Session:
        """Go on with the answers of a file."""
        content = read_file(path)
        session = cls(
            path,
            content.stakes,
            metric=content.metric,
            form=content.form,
            among=among,
            seed=seed,
        )
        session.answers = list(content.answers)
        session._written = path.read_bytes()
        if content.utility is None and content.answers:
            session.save()
        return session

    @property
    def question(self) -> Question | None:
        """The pair to ask about now; None when all have been asked."""
        if self._question is None:
            self._question = next_question(
                self.answers, self.stakes, self.crowd, among=self.among, seed=self.seed
            )
        return self._question

    @property
    def crowd(self) -> Crowd:
        """What the answers leave of all guesses."""
        if self._crowd is None:
            self._crowd = crowd_of(self.telling, self.stakes, self.form, seed=self.seed)
        return self._crowd

    @property
    def telling(self) -> list[Answer]:
        """The answers without those that say nothing, or that no utility explains."""
        return [
            a
            for a in self.answers
            if not against_reason(a, self.stakes) and not trivial(a, self.stakes)
        ]

    @property
    def fit(self) -> Fit | None:
        """The utility so far; None without an answer."""
        if self._fit is None and self.telling:
            self._fit = fit(self.telling, self.stakes, self.form, seed=self.seed)
        return self._fit

    @property
    def doubt(self) -> float:
        """The share of choices that would probably be made otherwise than the fit makes them."""
        found = self.fit
        return self.crowd.doubt(found.price if found else None)

    @property
    def is_enough(self) -> bool:
        """Whether another answer would hardly change a choice."""
        found = self.fit
        if found is None or contradictions(self.answers, self.stakes) or one_sided(self.answers):
            return False
        return enough(self.answers, self.crowd, found.price)

    @property
    def remarks(self) -> list[str]:
        """What is odd about the answers."""
        return remarks(self.answers, self.stakes)

    def answer(self, choice: Choice) -> None:
        """Answer the present question."""
        if self.question is None:
            raise PreferenceError("there is no question left to answer")
        self._change([*self.answers, Answer(*self.question, choice)])

    def add(self, answer: Answer) -> None:
        """Add an answer about outcomes of one's own."""
        self.stakes.place(answer.first)
        self.stakes.place(answer.second)
        self._change([*self.answers, answer])

    def undo(self) -> bool:
        """Take the last answer back; whether there was one."""
        if not self.answers:
            return False
        last = self.answers[-1]
        self._change(self.answers[:-1])
        self._question = (last.first, last.second)  # the same one again
        return True

    def _change(self, answers: list[Answer]) -> None:
        before, self.answers = self.answers, answers
        self._fit = self._crowd = self._question = None
        try:
            self.save()
        except PreferenceError:
            self.answers = before
            self._fit = self._crowd = None
            raise

    def save(self) -> None:
        """Write the file, unless somebody else has written it meanwhile."""
        there = self.path.read_bytes() if self.path.exists() else None
        if None not in (there, self._written) and there != self._written:
            raise PreferenceError(
                f"{self.path}: was changed by somebody else meanwhile; start again to go on "
                "from what it holds now"
            )
        found = self.fit
        notes = [sentence(found), *self.remarks] if found else []
        write_file(
            self.path,
            UtilityFile(
                stakes=self.stakes,
                metric=self.metric,
                form=self.form,
                answers=tuple(self.answers),
                utility=found.utility if found else None,
            ),
            notes,
        )
        self._written = self.path.read_bytes()
