"""Every error that freezethaw raises on purpose.

FreezeThawError
├── SpaceError           a search space, or parameters that do not fit it
├── ScaleError           bounds, soft bounds or an initial score that make no scale
├── UtilityError         a utility that is not one: no budget, falling in quality, …
├── PreferenceError      answers or a file of them that no utility can be fitted to
├── TableError           a curve table that breaks its format
├── ConfigError          study.toml, a command-line value, an unknown name
├── ExtrapolatorError    weights that cannot be read, or a study beyond their limits
├── TrainError           the training function: not a generator, yields no score, …
│   └── CheckpointError  a checkpoint that could not be written or read
└── StudyError           a study that cannot be opened, changed or told
    ├── MismatchError    opened with another space, goal or scale
    ├── BusyError        another process is writing to it
    ├── StorageError     the file is damaged, of another format, or the disk is full
    └── TellError        a score for an unknown step, an epoch out of order, …

Each message gives the value, the rule it breaks and the remedy.
"""


class FreezeThawError(Exception):
    """Base of every error that freezethaw raises on purpose."""


class SpaceError(FreezeThawError):
    """A search space, or parameters that do not fit it."""


class ScaleError(FreezeThawError):
    """Bounds, soft bounds or an initial score that make no scale."""


class UtilityError(FreezeThawError):
    """A utility that is not one."""


class PreferenceError(FreezeThawError):
    """Answers, or a file of them, that no utility can be fitted to."""


class TableError(FreezeThawError):
    """A curve table that breaks its format."""


class ConfigError(FreezeThawError):
    """A setting from a file, the command line or the caller that cannot be used."""


class ExtrapolatorError(FreezeThawError):
    """Weights that cannot be read, or a study beyond their limits."""


class TrainError(FreezeThawError):
    """The training function broke its contract with the tuner."""


class CheckpointError(TrainError):
    """A checkpoint that could not be written or read."""


class StudyError(FreezeThawError):
    """A study that cannot be opened, changed or told."""


class MismatchError(StudyError):
    """A study opened with another space, goal or scale than it was made with."""


class BusyError(StudyError):
    """Another process is writing to this study."""


class StorageError(StudyError):
    """A study's file is damaged, of another format, or could not be written."""


class TellError(StudyError):
    """A score for an unknown step, an epoch out of order, or one already told differently."""
