"""The command line, made from the options that each command's file declares.

Commands import numpy, torch and the like only when they run, so that help is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import BoundArguments
from textwrap import indent
from typing import Any

from cyclopts import App, Argument, CycloptsError, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from costcert import __version__
from costcert.cli import attack, certify, check, demo, explore, report, train, tune, vote
from costcert.cli.help import PlainHelp
from costcert.console import spell_what_cannot_be_encoded
from costcert.errors import CostcertError, nearest

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
    # As everywhere on a command line, the last of several values wins.
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=_shown_default),
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
    spell_what_cannot_be_encoded()
    sys.exit(_run(sys.argv[1:] if words is None else list(words)))


def parse(words: Sequence[str]) -> tuple[Callable[..., int | None], BoundArguments]:
    """The function that these words call, and its arguments."""
    if words and words[0] == "train":
        words = [_new_spelling(word) for word in words]
    function, bound, _ = app.parse_args(list(words))
    bound.apply_defaults()
    return function, bound


def _new_spelling(word: str) -> str:
    name, equals, value = word.partition("=")
    return train.OLD_SPELLINGS.get(name, name) + equals + value


def _run(words: Sequence[str]) -> int:
    """The exit code; what a user can correct is one sentence on the error stream and code 2."""
    try:
        function, arguments = parse(words)
        return function(*arguments.args, **arguments.kwargs) or 0
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
    """What is wrong with the words of the command line, and where to read more."""
    command = " ".join(("costcert", *(error.command_chain or ())))
    return f"{_fault(error)} (see {command} --help)"


def _fault(error: CycloptsError) -> str:
    match error:
        case MissingArgumentError(keyword=None):
            # A misspelled option is the likely reason why another one is missing.
            unknown = [word for word in error.unused_tokens or () if word.startswith("-")]
            if unknown:
                (command,) = error.command_chain or ()
                return _unknown(unknown[0], app[command].assemble_argument_collection())
            return f"{_missing(error)} is missing"
        case MissingArgumentError():
            return f"{error.keyword} needs a value"
        case UnknownOptionError():
            return _unknown(error.token.keyword or error.token.value, error.argument_collection)
        case UnknownCommandError():
            (word, *_) = error.unused_tokens or [""]
            if word.startswith("-"):
                return f"unknown option {word}{nearest(word, ('--help', '--version'))}"
            return f"unknown command {word!r}{nearest(word, COMMANDS)}: use one of {', '.join(COMMANDS)}"
        case UnusedCliTokensError():
            return f"unexpected argument {(error.unused_tokens or [''])[0]!r}"
        case CoercionError(token=Token(keyword=str(option), value=value), target_type=type() as expected):
            kind = {int: "a whole number", float: "a number"}.get(expected, expected.__name__)
            return f"cannot read {option} {value!r}: expected {kind}"
        case ValidationError(argument=Argument(name=option, value=number), exception_message=message):
            return f"{option} {message[:1].lower()}{message[1:].rstrip('.')}, got {number}"
    error.verbose = False
    return " ".join(str(error).split()).rstrip(".")


def _unknown(word: str, known: Iterable[Argument]) -> str:
    option = word.partition("=")[0]
    names = [name for each in known for name in each.names if name.startswith("--")]
    return f"unknown option {option}{nearest(option, names) if option.startswith('--') else ''}"


def _missing(error: MissingArgumentError) -> str:
    """The option or argument that is missing: of a group of options the first required one."""
    argument = error.argument
    assert argument is not None
    while argument.children:
        argument = next(child for child in argument.children if child.required and not child.has_tokens)
    is_option = argument.field_info.kind is argument.field_info.KEYWORD_ONLY
    return str(argument.name if is_option else argument.name.lstrip("-").upper())
