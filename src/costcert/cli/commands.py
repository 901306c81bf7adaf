"""The command line, made from the options that each command's file declares.

Commands import numpy, torch and the like only when they run, so that help is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import MissingArgumentError, UnusedCliTokensError

from costcert import __version__
from costcert.cli import attack, certify, check, demo, explore, report, train, tune, vote
from costcert.cli.help import PlainHelp
from costcert.errors import CostcertError

# In the order of the help: the order in which they are used.
COMMANDS = {
    "demo": demo,
    "train": train,
    "vote": vote,
    "tune": tune,
    "certify": certify,
    "report": report,
    "attack": attack,
    "check": check,
    "explore": explore,
}

# Packages that only models, datasets and training need.
_MODELS = ("torch", "torchvision", "timm", "safetensors", "accelerate", "PIL", "onnxruntime")


def _shown_default(value: Any) -> Any:
    """Defaults that mean "off" or "none" are not shown."""
    if value is True:
        return "yes"
    if isinstance(value, float):
        return f"{value:g}"
    return None if value is False or value == () else value


app = App(
    name="costcert",
    help="Proves whether an image classifier's top-k answer survives an adversarial patch.",
    help_flags=("--help", "-h"),
    help_format="plaintext",
    help_formatter=PlainHelp(),
    version=f"costcert {__version__}",
    version_flags=("--version",),
    default_parameter=Parameter(negative=(), show_default=_shown_default),
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _number, (_name, _command) in enumerate(COMMANDS.items()):
    app.command(
        _command.run,
        name=_name,
        sort_key=_number,
        help_epilogue="Examples\n" + indent("\n".join(_command.EXAMPLES), "  "),
    )


def main(words: Sequence[str] | None = None) -> None:
    """The entry point: run a command and exit with its code."""
    sys.exit(_run(sys.argv[1:] if words is None else list(words)))


def parse(words: Sequence[str]) -> tuple[Callable[..., int | None], tuple[Any, ...]]:
    """The function that these words call, and its arguments."""
    if words and words[0] == "train":
        words = [_new_spelling(word) for word in words]
    function, bound, _ = app.parse_args(list(words))
    return function, bound.args


def _new_spelling(word: str) -> str:
    name, equals, value = word.partition("=")
    return train.OLD_SPELLINGS.get(name, name) + equals + value


def _run(words: Sequence[str]) -> int:
    """The exit code; what a user can correct is one sentence on the error stream and code 2."""
    try:
        function, arguments = parse(words)
        return function(*arguments) or 0
    except CycloptsError as error:
        return _refuse(_sentence(error))
    except CostcertError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _MODELS:
            raise
        return _refuse(f"{error.name} is not installed: pip install 'costcert[models]'")
    except KeyboardInterrupt:
        print("costcert: stopped; finished work is kept, and a second run continues it", file=sys.stderr)
        return 130


def _refuse(sentence: str) -> int:
    print(f"costcert: {sentence}", file=sys.stderr)
    return 2


def _sentence(error: CycloptsError) -> str:
    """What is wrong with the words, and where to read more."""
    command = " ".join(("costcert", *(error.command_chain or ())))
    if isinstance(error, MissingArgumentError) and error.keyword is None:
        sentence = f"{_missing(error)} is missing"
    elif isinstance(error, MissingArgumentError):
        sentence = f"{error.keyword} needs a value"
    elif isinstance(error, UnusedCliTokensError):
        sentence = f"cannot read {' '.join(error.unused_tokens or ())!r}"
    else:
        error.verbose = False
        sentence = " ".join(str(error).split()).rstrip(".")
        sentence = sentence[:1].lower() + sentence[1:]
    return f"{sentence} (see {command} --help)"


def _missing(error: MissingArgumentError) -> str:
    """The option or argument that is missing: of a group of options the first required one."""
    argument = error.argument
    assert argument is not None
    while argument.children:
        argument = next(child for child in argument.children if child.required and not child.has_tokens)
    is_option = argument.field_info.kind is argument.field_info.KEYWORD_ONLY
    return str(argument.name if is_option else argument.name.lstrip("-").upper())
