"""Groups of commands and options of the command line, one file each; `evalkit.cli` joins them."""

from typing import Any

PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
