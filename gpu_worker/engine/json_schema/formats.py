"""Formats of strings that are enforced more strictly than the library does.

It allows the 29th of February in every year, a second 60 in every minute, names of hosts of any
length and, in these, labels that look like punycode and are none.
"""

from collections.abc import Mapping
from typing import Final

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY_OF_ANY_YEAR = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DATE = f"(?:{_YEAR}-{_DAY_OF_ANY_YEAR}|{_LEAP_YEAR}-02-29)"
_HOUR_AND_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_AND_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR_AND_MINUTE})"
_LETTER = "[A-Za-z0-9]"
_LABEL = f"{_LETTER}(?:-?{_LETTER}){{0,19}}"

FORMAT_PATTERNS: Final[Mapping[str, str]] = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL}){{0,5}}$",
    "time": f"^{_TIME}$",
}
